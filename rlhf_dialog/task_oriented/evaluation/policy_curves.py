"""The learning curves of dialogue policies: success and reward against dialogues, one column of panels for each error rate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from rlhf_dialog.task_oriented.evaluation.policy_rows import Row

LINES = {"handcrafted": "--", "random": ":"}  # they do not learn
MARKERS = "osv^<>DPX*"
COLORS = [matplotlib.colormaps["tab20"](number) for number in (*range(0, 20, 2), *range(1, 20, 2))]


def plot_curves(rows: Sequence[Row], title: str, output: Path) -> None:
    """Draw the rows of `rows_of` (at least one) into the PNG file `output`: the mean of the seeds, and a band from the worst seed
    to the best one. Policies that do not learn are lines; one that lies below all curves is named with its number instead."""
    errors = sorted({row["error_rate"] for row in rows})
    names = list(dict.fromkeys(row["policy"] for row in rows if row["mark"]))
    figure = Figure(figsize=(4 * len(errors) + 2, 8), layout="constrained")
    panels = figure.subplots(2, len(errors), squeeze=False)
    for column, error_rate in enumerate(errors):
        for line, measure in enumerate(("success", "reward")):
            _panel(panels[line][column], [row for row in rows if row["error_rate"] == error_rate], names, measure)
        panels[0][column].set_title(f"{100 * error_rate:g} % error", fontsize=10)
    known = {
        label: handle for axis in panels.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(known.values(), known.keys(), loc="outside right upper", fontsize=9)
    figure.suptitle(title, fontsize=11)
    figure.savefig(output, dpi=110)


def _panel(axis: Any, rows: Sequence[Row], names: Sequence[str], measure: str) -> None:
    for number, name in enumerate(names):
        if own := sorted((row for row in rows if row["policy"] == name), key=lambda row: row["mark"]):
            _curve(axis, own, measure, name, number)
    for row in rows:
        if not row["mark"]:
            policy = row["policy"]
            axis.axhline(
                row[measure]["mean"], color="black", linewidth=1, linestyle=LINES.get(policy, "-."), label=policy
            )
    if names:
        _limit(axis, rows, measure)
    axis.set_xscale("log")
    marks = sorted({row["mark"] for row in rows if row["mark"]})
    axis.set_xticks(marks, [f"{mark:,}" for mark in marks], minor=False)
    axis.minorticks_off()
    axis.set_xlabel("dialogues")
    axis.set_ylabel(measure)
    axis.grid(alpha=0.3)


def _curve(axis: Any, rows: Sequence[Row], measure: str, name: str, number: int) -> None:
    places = [row["training"]["dialogues"] for row in rows]
    color = COLORS[number % len(COLORS)]
    means = [row[measure]["mean"] for row in rows]
    axis.plot(places, means, color=color, marker=MARKERS[number % 10], markersize=4, label=name)
    bands = [row["seed_means"][measure] for row in rows]
    axis.fill_between(places, [min(band) for band in bands], [max(band) for band in bands], color=color, alpha=0.12)


def _limit(axis: Any, rows: Sequence[Row], measure: str) -> None:
    """The range is that of the curves and the handcrafted policy: far below them `random` would press them together."""
    kept = [row for row in rows if row["mark"] or row["policy"] == "handcrafted"]
    means = [mean for row in kept for mean in row["seed_means"][measure]]
    margin = 0.05 * (max(means) - min(means)) or 0.05
    axis.set_ylim(min(means) - margin, max(means) + margin)
    lines = [(row["policy"], row[measure]["mean"]) for row in rows if not row["mark"]]
    if below := [f"{name}: {mean:.2f}" for name, mean in lines if mean < min(means) - margin]:
        text = f"below: {', '.join(below)}"
        axis.annotate(text, (0.98, 0.02), xycoords="axes fraction", horizontalalignment="right", fontsize=8)
