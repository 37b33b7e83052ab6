"""Write made-up dialogues:  python scripts/write_dialogues.py --output DIR [--num_dialogues N] [--seed N]"""

import sys

from rlhf_dialog.commands.write_dialogues import main

if __name__ == "__main__":
    sys.exit(main())
