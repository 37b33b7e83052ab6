"""`python -m rlhf_dialog.feedback` is the command `rlhf-dialog feedback`."""

import sys

from rlhf_dialog.feedback.commands.feedback import main

if __name__ == "__main__":
    sys.exit(main())
