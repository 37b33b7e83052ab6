"""Publish an agent:  python scripts/push_to_hub.py --agent runs/quickstart/agent --repo NAME [--private] [--dry_run]"""

import sys

from rlhf_dialog.commands.push_to_hub import main

if __name__ == "__main__":
    sys.exit(main())
