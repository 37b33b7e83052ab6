"""Measure the speed of training:  python scripts/benchmark.py --workload W --size small [--json speed.json]"""

import sys

from benchmarks.benchmark import main

if __name__ == "__main__":
    sys.exit(main())
