"""Train the dialogue act classifier of the reward:

python reward_models/train_intent_classifier.py --config intent_quickstart.yaml [--key value]
"""

import sys

try:
    from rlhf_dialog.commands.supervised import train_intent_classifier as main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
