"""Train the relevance model of the reward:

python reward_models/train_relevance_model.py --config relevance_dailydialog_small.yaml [--key value]
"""

import sys

try:
    from rlhf_dialog.commands.supervised import train_relevance_model as main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
