"""The plot of a dialogue policy's run: success and reward against dialogues, with the lines of the handcrafted policy."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rlhf_dialog.evaluation.plot import Rows, line


def plot_success(rows: Rows, title: str, output: Path) -> None:
    """Draw the rows of a metrics.jsonl (at least one) in two panels, and write them to the PNG file `output`."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axis, name in zip(figure.subplots(1, 2), ("success", "reward"), strict=True):
        _panel(axis, rows, name)
    figure.suptitle(title)
    figure.savefig(output, dpi=110)


def of_dialogues(rows: Rows) -> Rows:
    """The rows of a language model's run with an environment, under the names of those of a policy's run."""
    names = {"dialogues": "episodes", "success": "environment/success", "reward": "environment/reward"}
    return [row | {new: row[old] for new, old in names.items() if old in row} for row in rows]


def _panel(axis: Any, rows: Rows, name: str) -> None:
    line(axis, rows, name, "while learning", "dialogues", color="grey", alpha=0.6)
    line(axis, rows, f"eval/{name}", "evaluation", "dialogues", color="black", marker="o", markersize=3)
    known = [row[f"eval/handcrafted_{name}"] for row in rows if f"eval/handcrafted_{name}" in row]
    if known:
        axis.axhline(known[-1], color="tab:blue", linestyle="--", label="handcrafted")
    axis.set_xlabel("dialogues")
    axis.set_title(name, fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="lower right")
