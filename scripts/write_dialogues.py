"""Write made-up dialogues:  python scripts/write_dialogues.py --output DIR [--num_dialogues N] [--seed N]"""

import sys

try:
    from rlhf_dialog.commands.write_dialogues import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
