"""Relevance model: learn which reply fits which turns before it, for RelevanceReward and as a judge of an evaluation."""

from rlhf_dialog.commands.supervised.stage_command import make_command
from rlhf_dialog.training.supervised.settings import RelevanceConfig

main = make_command(RelevanceConfig, "rlhf_dialog.training.supervised.relevance.model:RelevanceTraining", __doc__)
