"""`python -m experiments.blind`."""

import sys

from experiments.blind.command import main

if __name__ == "__main__":
    sys.argv[0] = "python -m experiments.blind"
    sys.exit(main())
