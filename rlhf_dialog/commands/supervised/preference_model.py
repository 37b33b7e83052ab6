"""Preference model: train a reward model on pairs of replies, and report what it is worth beside rules without a model."""

from rlhf_dialog.commands.options import register
from rlhf_dialog.commands.supervised.stage_command import make_command
from rlhf_dialog.training.supervised.settings import PreferenceConfig


def _register(config: PreferenceConfig) -> None:
    if config.register_file:
        register(config.register_file, "register_file:")


STAGE = "rlhf_dialog.training.supervised.preference_model:PreferenceModel"
main = make_command(PreferenceConfig, STAGE, __doc__, before=_register)
