"""Train a reward model on pairs of replies:

python reward_models/train_preference_model.py --config preference_quickstart.yaml [--key value]
"""

import sys

from rlhf_dialog.commands.supervised.preference_model import main

if __name__ == "__main__":
    sys.exit(main())
