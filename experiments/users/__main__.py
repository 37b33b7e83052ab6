"""Compare simulated with real users:  python scripts/compare_users.py --data_path DATA --users agenda corpus --output FILE"""

import sys

from rlhf_dialog.task_oriented.commands.compare_users import main

if __name__ == "__main__":
    sys.exit(main())
