"""What this machine can do, and what runs on it:  python scripts/doctor.py [--json]"""

import sys

from rlhf_dialog.commands.doctor import main

if __name__ == "__main__":
    sys.exit(main())
