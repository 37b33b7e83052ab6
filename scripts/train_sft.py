"""Fine-tune a dialog model:  python scripts/train_sft.py --config sft_quickstart.yaml [--key value]"""

import sys

try:
    from rlhf_dialog.commands.supervised import train_sft as main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
