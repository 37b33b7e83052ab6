"""Measure what only a GPU can show, in ten minutes:  python scripts/benchmark_gpu.py [--out FOLDER]"""

import sys

from rlhf_dialog.commands.benchmark_gpu import main

if __name__ == "__main__":
    sys.exit(main())
