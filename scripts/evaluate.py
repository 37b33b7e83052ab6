"""Measure an agent on held-out prompts:  python scripts/evaluate.py --agent DIR [--baseline DIR] --output evaluation.json"""

import sys

from rlhf_dialog.commands.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
