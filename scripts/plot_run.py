"""Plot the metrics of a run:  python scripts/plot_run.py --run runs/quickstart [--output plot.png]"""

import sys

try:
    from rlhf_dialog.commands.plot_run import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
