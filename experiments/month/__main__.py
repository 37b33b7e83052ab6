"""`python -m experiments.month`."""

import sys

from experiments.month.command import main

if __name__ == "__main__":
    sys.argv[0] = "python -m experiments.month"
    sys.exit(main())
