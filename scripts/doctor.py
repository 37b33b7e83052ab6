"""What this machine can do, and what runs on it:  python scripts/doctor.py [--json]"""

import sys

try:
    from rlhf_dialog.commands.doctor import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
