"""Train a dialogue policy:  python scripts/train_policy.py --config restaurant.yaml"""

import sys

try:
    from rlhf_dialog.task_oriented.commands.train_policy import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
