"""Supervised fine-tuning: train a causal LM, or a small GPT-2 from scratch, on the replies of the training dialogues."""

from rlhf_dialog.commands.supervised.stage_command import make_command
from rlhf_dialog.training.supervised.settings import SFTConfig

main = make_command(SFTConfig, "rlhf_dialog.training.supervised.sft:SFT", __doc__)
