"""Find the holes of a reward before training:  python scripts/audit.py --config quickstart.yaml [--register audits.json]"""

import sys

from rlhf_dialog.commands.audit import main

if __name__ == "__main__":
    sys.exit(main())
