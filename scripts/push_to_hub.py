"""Publish an agent:  python scripts/push_to_hub.py --agent runs/quickstart/agent --repo NAME [--private] [--dry_run]"""

import sys

try:
    from rlhf_dialog.commands.push_to_hub import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
