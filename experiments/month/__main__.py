"""A simulated month of talking and learning:  python scripts/month.py [--troll_study] [--config FILE] [--key value ...]"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout

from examples.month.month import main

if __name__ == "__main__":
    sys.exit(main())
