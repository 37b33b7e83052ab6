"""Relevance model: learn which reply fits which turns before it, for RelevanceReward and as a judge of an evaluation."""

from typing import Any

from rlhf_dialog.commands.supervised.stage_command import make_command
from rlhf_dialog.training.supervised.settings import RelevanceConfig


def _stage() -> Any:
    from rlhf_dialog.training.supervised.relevance.model import RelevanceTraining

    return RelevanceTraining


main = make_command(RelevanceConfig, _stage, __doc__)
