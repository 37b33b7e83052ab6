"""Write dialogues in words of a restaurant guide:  python scripts/write_restaurant.py [--output DIR] [--dialogues N]"""

import sys

try:
    from rlhf_dialog.task_oriented.commands.write_restaurant import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
