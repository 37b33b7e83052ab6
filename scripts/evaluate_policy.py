"""Measure a dialogue policy:  python scripts/evaluate_policy.py --agent runs/restaurant/agent --dialogues 1000"""

import sys

try:
    from rlhf_dialog.task_oriented.commands.evaluate_policy import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
