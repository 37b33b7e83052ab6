"""Blind reading of two systems' replies:  python scripts/blind.py --replies replies.jsonl --pairs 60 --output reading"""

import sys

from rlhf_dialog.commands.blind import main

if __name__ == "__main__":
    sys.exit(main())
