"""DailyDialog to a table:  python scripts/dailydialog.py --data_path PATH --work DIR [--size short] [--until STAGE]"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout

from rlhf_dialog.commands.dailydialog.command import main

if __name__ == "__main__":
    sys.exit(main())
