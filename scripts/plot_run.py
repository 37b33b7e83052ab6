"""Plot a run's metrics.jsonl: reward and its parts, KL, speed, response length over the iterations.

python scripts/plot_run.py --run runs/quickstart [--output plot.png]
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from rlhf_dialog.cli import exit_code_of, set_up_logging
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_config import number_in
from rlhf_dialog.tracking import read_metrics

Rows = list[dict[str, Any]]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="run folder with metrics.jsonl")
    parser.add_argument("--output", type=Path, help="PNG to write; default: plot.png in the run folder")
    options = parser.parse_args(argv)
    set_up_logging()
    return exit_code_of(lambda: plot(options.run, options.output or options.run / "plot.png"), debug=False)


def plot(run: Path, output: Path) -> None:
    """Draw four panels. Raises UserError when the run has no metrics yet."""
    metrics = run / "metrics.jsonl"
    rows = read_metrics(metrics) if metrics.is_file() else []
    if not rows:
        raise UserError(f"{metrics}: no metrics to plot; train first")
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.5), layout="constrained")
    _rewards(axes[0, 0], rows)
    _kl(axes[0, 1], rows, run)
    _line(axes[1, 0], rows, "FPS", "generated tokens per second")
    _line(axes[1, 1], rows, "response/length", "tokens per response")
    for axis in axes.flat:
        axis.set_xlabel("iteration")
        axis.grid(alpha=0.3)
    figure.suptitle(str(run))
    figure.savefig(output, dpi=110)
    plt.close(figure)
    print(f"plot: {output}")


def _rewards(axis: Any, rows: Rows) -> None:
    _line(axis, rows, "objective/score", "score", color="black", linewidth=2)
    for name in rows[0]:
        if name.startswith("reward/") and name.count("/") == 1 and not name.endswith("_weighted"):
            _line(axis, rows, name, name.removeprefix("reward/"))
    _line(axis, rows, "eval/score", "score on validation", color="black", linestyle="", marker="o")
    axis.set_title("reward and its parts", fontsize=10)
    axis.legend(fontsize=8)


def _kl(axis: Any, rows: Rows, run: Path) -> None:
    _line(axis, rows, "objective/kl", "KL per token")
    _line(axis, rows, "objective/kl_coef", "KL coefficient", linestyle=":")
    target = number_in(run / "config.yaml", "kl_target")
    if target is not None:
        axis.axhline(target, color="grey", linestyle="--", label="KL target")
    axis.set_title("KL to the reference, nats per token", fontsize=10)
    axis.legend(fontsize=8)


def _line(axis: Any, rows: Rows, name: str, label: str, **style: Any) -> None:
    points = [(row["iteration"], row[name]) for row in rows if row.get(name) is not None]
    axis.plot(*zip(*points, strict=True), label=label, **style) if points else None
    axis.set_title(label, fontsize=10)


if __name__ == "__main__":
    sys.exit(main())
