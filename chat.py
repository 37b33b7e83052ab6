"""Chat with a trained agent in the terminal:  python chat.py [--agent DIR]"""

import sys

try:
    from rlhf_dialog.commands.chat import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
