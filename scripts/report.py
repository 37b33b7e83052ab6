"""A page about a run, with curves and a verdict:  python scripts/report.py runs/quickstart [--output report.html]"""

import sys

from rlhf_dialog.commands.report import main

if __name__ == "__main__":
    sys.exit(main())
