"""Relevance model: learn which reply fits which turns before it, for RelevanceReward and as a judge of an evaluation."""

from typing import Any

from rlhf_dialog.commands.supervised.stage_command import command_of
from rlhf_dialog.training.supervised.settings import RelevanceConfig


def _stage() -> Any:
    from rlhf_dialog.training.supervised.relevance.model import RelevanceTraining

    return RelevanceTraining


main = command_of(RelevanceConfig, _stage, __doc__)
