"""Measure a dialogue policy:  python scripts/evaluate_policy.py --agent runs/restaurant/agent --dialogues 1000"""

import sys

from rlhf_dialog.task_oriented.commands.evaluate_policy import main

if __name__ == "__main__":
    sys.exit(main())
