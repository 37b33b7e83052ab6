"""Train the dialogue act classifier of the reward:

python reward_models/train_intent_classifier.py --config intent_quickstart.yaml [--key value]
"""

import sys

from rlhf_dialog.commands.supervised.intent_classifier import main

if __name__ == "__main__":
    sys.exit(main())
