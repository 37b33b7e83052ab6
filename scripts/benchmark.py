"""Measure the speed of training:  python scripts/benchmark.py --workload W --size small [--json speed.json]"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout

import rlhf_dialog  # noqa: F401  before torch, whose threads it sets
from benchmarks.benchmark import main

if __name__ == "__main__":
    sys.exit(main())
