"""Measure what only a GPU can show, in ten minutes:  python scripts/benchmark_gpu.py [--out FOLDER]"""

import sys

from benchmarks.gpu import main

if __name__ == "__main__":
    sys.exit(main())
