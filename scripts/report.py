"""A page about a run, with curves and a verdict:  python scripts/report.py runs/quickstart [--output report.html]"""

import sys

try:
    from rlhf_dialog.commands.report import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
