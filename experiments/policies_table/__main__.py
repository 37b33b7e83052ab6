"""Compare dialogue policies:  python scripts/benchmark_policies.py --policies all --errors 0 15 30 --output table.json"""

import sys

from rlhf_dialog.task_oriented.commands.benchmark_policies.command import main

if __name__ == "__main__":
    sys.exit(main())
