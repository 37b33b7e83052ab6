"""`python -m experiments.dailydialog --data_path PATH --work DIR [--size short]`."""

import sys

from experiments.dailydialog.command import main

if __name__ == "__main__":
    sys.argv[0] = "python -m experiments.dailydialog"
    sys.exit(main())
