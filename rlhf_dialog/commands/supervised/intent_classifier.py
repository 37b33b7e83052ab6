"""Intent classifier: train an encoder to predict the act of a turn (inform, question, directive, commissive)."""

from typing import Any

from rlhf_dialog.commands.supervised.stage_command import make_command
from rlhf_dialog.training.supervised.settings import IntentConfig


def _stage() -> Any:
    from rlhf_dialog.training.supervised.intent_classifier import IntentClassifier

    return IntentClassifier


main = make_command(IntentConfig, _stage, __doc__)
