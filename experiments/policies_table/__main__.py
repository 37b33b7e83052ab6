"""`python -m experiments.policies_table`."""

import sys

from experiments.policies_table.command import main

if __name__ == "__main__":
    sys.argv[0] = "python -m experiments.policies_table"
    sys.exit(main())
