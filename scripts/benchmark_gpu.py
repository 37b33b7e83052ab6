"""Measure what only a GPU can show, in ten minutes:  python scripts/benchmark_gpu.py [--out FOLDER]"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout

import rlhf_dialog  # noqa: F401  before torch, whose threads it sets
from benchmarks.gpu import main

if __name__ == "__main__":
    sys.exit(main())
