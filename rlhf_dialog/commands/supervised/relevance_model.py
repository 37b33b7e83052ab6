"""Relevance model: learn which reply fits which turns before it, for RelevanceReward and as a judge of an evaluation."""

from rlhf_dialog.commands.supervised.stage_command import command_of
from rlhf_dialog.training.supervised.relevance.model import RelevanceTraining

main = command_of(RelevanceTraining, __doc__)
