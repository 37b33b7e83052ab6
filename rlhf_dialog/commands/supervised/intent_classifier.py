"""Intent classifier: train an encoder to predict the act of a turn (inform, question, directive, commissive)."""

from rlhf_dialog.commands.supervised.stage_command import command_of
from rlhf_dialog.training.supervised.intent_classifier import IntentClassifier

main = command_of(IntentClassifier, __doc__)
