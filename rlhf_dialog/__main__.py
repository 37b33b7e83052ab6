"""`python -m rlhf_dialog` is the command `rlhf-dialog`, also for launchers: `torchrun -m rlhf_dialog train --config FILE`."""

import sys

from rlhf_dialog.commands.dispatcher import main

if __name__ == "__main__":
    sys.exit(main())
