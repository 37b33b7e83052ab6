"""The plot of a run: reward and its parts, KL, speed, response length over the iterations."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

Rows = list[dict[str, Any]]


def plot(rows: Rows, kl_target: float | None, title: str, output: Path) -> None:
    """Draw the rows of a metrics.jsonl (at least one) in four panels, and write them to the PNG file `output`."""
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(2, 2)
    _rewards(axes[0, 0], rows)
    _kl(axes[0, 1], rows, kl_target)
    line(axes[1, 0], rows, "FPS", "generated tokens per second")
    line(axes[1, 1], rows, "response/length", "tokens per response")
    for axis in axes[1]:
        axis.set_ylim(bottom=0)
    for axis in axes.flat:
        axis.set_xlabel("iteration")
        axis.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(output, dpi=110)


def _rewards(axis: Any, rows: Rows) -> None:
    line(axis, rows, "objective/score", "score", color="black", linewidth=2)
    for name in rows[0]:
        if name.startswith("reward/") and name.count("/") == 1 and not name.endswith("_weighted"):
            line(axis, rows, name, name.removeprefix("reward/"))
    line(axis, rows, "eval/score", "score on validation", color="black", linestyle="", marker="o")
    axis.set_title("reward and its parts", fontsize=10)
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def _kl(axis: Any, rows: Rows, target: float | None) -> None:
    line(axis, rows, "objective/kl", "KL per token")
    line(axis, rows, "objective/kl_coef", "KL coefficient", linestyle=":")
    if target is not None:
        axis.axhline(target, color="grey", linestyle="--", label="KL target")
    axis.set_title("KL to the reference, nats per token", fontsize=10)
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def line(axis: Any, rows: Rows, name: str, label: str, over: str = "iteration", **style: Any) -> None:
    """The rows that have `name`, over another column."""
    points = [(row[over], row[name]) for row in rows if row.get(name) is not None]
    if points:
        axis.plot(*zip(*points, strict=True), label=label, **style)
    axis.set_title(label, fontsize=10)
