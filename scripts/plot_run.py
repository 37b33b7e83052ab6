"""Plot the metrics of a run:  python scripts/plot_run.py --run runs/quickstart [--output plot.png]"""

import sys

from rlhf_dialog.commands.plot_run import main

if __name__ == "__main__":
    sys.exit(main())
