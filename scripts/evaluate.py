"""Measure an agent on held-out prompts:  python scripts/evaluate.py --agent DIR [--baseline DIR] --output evaluation.json"""

import sys

try:
    from rlhf_dialog.commands.evaluate import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
