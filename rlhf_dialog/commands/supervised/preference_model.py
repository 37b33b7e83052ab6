"""Preference model: train a reward model on pairs of replies, and report what it is worth beside rules without a model."""

from typing import Any

from rlhf_dialog.commands.options import register
from rlhf_dialog.commands.supervised.stage_command import make_command
from rlhf_dialog.training.supervised.settings import PreferenceConfig


def _stage() -> Any:
    from rlhf_dialog.training.supervised.preference_model import PreferenceModel

    return PreferenceModel


def _register(config: PreferenceConfig) -> None:
    if config.register_file:
        register(config.register_file, "register_file:")


main = make_command(PreferenceConfig, _stage, __doc__, before=_register)
