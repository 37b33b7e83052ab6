"""Train a reward model on pairs of replies:

python reward_models/train_preference_model.py --config preference_quickstart.yaml [--key value]
"""

import sys

try:
    from rlhf_dialog.commands.supervised import train_preference_model as main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
