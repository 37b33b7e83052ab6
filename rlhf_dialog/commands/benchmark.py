"""The command `rlhf-dialog benchmark`: starts the speed benchmark of the checkout, which is not part of the package."""

import sys
from pathlib import Path

import rlhf_dialog
from rlhf_dialog.errors import UserError

CHECKOUT = Path(rlhf_dialog.__file__).resolve().parents[1]


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code of the benchmark, or 2 where its programs are not installed."""
    if not (CHECKOUT / "benchmarks" / "benchmark.py").is_file():
        sys.stderr.write(
            "error: the benchmarks are in the checkout of rlhf-dialog (benchmarks/), not in the installed package; run "
            "`python scripts/benchmark.py` there\n"
        )
        return UserError.exit_code
    sys.path.insert(0, str(CHECKOUT))
    from benchmarks.options import parse

    parse(argv)  # ends the program for --help and mistakes, before torch is loaded
    from benchmarks.benchmark import main as benchmark

    return benchmark(argv)
