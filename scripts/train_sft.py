"""Fine-tune a dialog model:  python scripts/train_sft.py --config sft_quickstart.yaml [--key value]"""

import sys

from rlhf_dialog.commands.supervised.sft import main

if __name__ == "__main__":
    sys.exit(main())
