"""Supervised fine-tuning: train a causal LM, or a small GPT-2 from scratch, on the replies of the training dialogues."""

from typing import Any

from rlhf_dialog.commands.supervised.stage_command import make_command
from rlhf_dialog.training.supervised.settings import SFTConfig


def _stage() -> Any:
    from rlhf_dialog.training.supervised.sft import SFT

    return SFT


main = make_command(SFTConfig, _stage, __doc__)
