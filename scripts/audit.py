"""Find the holes of a reward before training:  python scripts/audit.py --config quickstart.yaml [--register audits.json]"""

import sys

try:
    from rlhf_dialog.commands.audit import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
