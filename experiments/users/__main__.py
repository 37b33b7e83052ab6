"""`python -m experiments.users`."""

import sys

from experiments.users.command import main

if __name__ == "__main__":
    sys.argv[0] = "python -m experiments.users"
    sys.exit(main())
