"""Supervised fine-tuning: train a causal LM, or a small GPT-2 from scratch, on the replies of the training dialogues."""

from rlhf_dialog.commands.supervised.stage_command import command_of
from rlhf_dialog.training.supervised.sft import SFT

main = command_of(SFT, __doc__)
