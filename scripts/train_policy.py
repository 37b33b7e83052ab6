"""Train a dialogue policy:  python scripts/train_policy.py --config restaurant.yaml"""

import sys

from rlhf_dialog.task_oriented.commands.train_policy import main

if __name__ == "__main__":
    sys.exit(main())
