"""Intent classifier: train an encoder to predict the act of a turn (inform, question, directive, commissive)."""

from rlhf_dialog.commands.supervised.stage_command import make_command
from rlhf_dialog.training.supervised.settings import IntentConfig

main = make_command(IntentConfig, "rlhf_dialog.training.supervised.intent_classifier:IntentClassifier", __doc__)
