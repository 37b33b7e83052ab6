"""Write dialogues in words of a restaurant guide:  python scripts/write_restaurant.py [--output DIR] [--dialogues N]"""

import sys

from rlhf_dialog.task_oriented.commands.write_restaurant import main

if __name__ == "__main__":
    sys.exit(main())
