"""Chat with a trained agent in the terminal:  python chat.py [--agent DIR]"""

import sys

from rlhf_dialog.commands.chat import main

if __name__ == "__main__":
    sys.exit(main())
