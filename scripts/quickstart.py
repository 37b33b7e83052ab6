"""Run the whole pipeline offline on a small model and synthetic data:  python scripts/quickstart.py"""

import sys
from pathlib import Path

try:
    from rlhf_dialog.commands.quickstart import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main(folder=Path(__file__).resolve().parents[1]))
