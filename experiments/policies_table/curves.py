"""The learning curves of dialogue policies: success against dialogues, a column of panels for each error rate.

A panel has at most seven lines, each named at its right end: six policies that learn, and the rules.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.policies_table.rows import Row
from rlhf_dialog.evaluation.intervals import Array

MOST = 6  # curves of a panel
# Okabe and Ito's colors, which people with color blindness can keep apart
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osv^DP"
LINES = {"handcrafted": "--", "random": ":"}  # they do not learn
BETWEEN = 0.05  # two labels, as a share of the panel's height


def plot_curves(rows: Sequence[Row], title: str, output: Path) -> None:
    """Draw the rows of `rows_of` (at least one) into the PNG file `output`: means over the seeds with their intervals.

    Policies that do not learn are lines; one that lies below all curves is named with its number instead.
    """
    errors = sorted({row["error_rate"] for row in rows})
    names = list(dict.fromkeys(row["policy"] for row in rows if row["mark"]))
    groups: list[list[str]] = [list(part) for part in np.array_split(names, max(1, -(-len(names) // MOST)))]
    figure = Figure(figsize=(4.6 * len(errors), 3.8 * len(groups) + 0.4), layout="constrained")
    panels = figure.subplots(len(groups), len(errors), squeeze=False, sharey="col")
    for column, error_rate in enumerate(errors):
        own = [row for row in rows if row["error_rate"] == error_rate]
        for axis, group in zip(panels[:, column], groups, strict=True):
            _panel(axis, own, group)
        panels[0][column].set_title(f"{100 * error_rate:g} % error", fontsize=11)
    for axis in panels[:, 0]:
        axis.set_ylabel("success")
    figure.suptitle(title, fontsize=11)
    figure.savefig(output, dpi=110)


def _panel(axis: Any, rows: Sequence[Row], names: Sequence[str]) -> None:
    labels = []
    _limit(axis, rows)
    for name, color, marker in zip(names, COLORS, MARKERS, strict=False):
        if own := sorted((row for row in rows if row["policy"] == name), key=lambda row: row["mark"]):
            places = [row["training"]["dialogues"] for row in own]
            mean, low, high = (np.asarray([row["success"][key] for row in own]) for key in ("mean", "low", "high"))
            beside = np.maximum(np.stack([mean - low, high - mean]), 0)
            axis.errorbar(places, mean, beside, color=color, marker=marker, markersize=5, elinewidth=0.8, label=name)
            labels.append((float(mean[-1]), name, color))
    for row in (row for row in rows if not row["mark"]):
        name, mean = row["policy"], row["success"]["mean"]
        axis.axhline(mean, color="black", linewidth=1, linestyle=LINES.get(name, "-."), label=name)
        if mean >= axis.get_ylim()[0]:
            labels.append((mean, name, "black"))
    _name_lines(axis, labels)
    axis.set_xscale("log")
    marks = sorted({row["mark"] for row in rows if row["mark"]})
    axis.set_xticks(marks, [f"{mark:,}" for mark in marks], minor=False)
    axis.minorticks_off()
    axis.set_xlabel("dialogues")
    axis.grid(alpha=0.3)


def _name_lines(axis: Any, labels: list[tuple[float, str, str]]) -> None:
    """The name of each line (its last value, name, color) to the right of the panel, at its height or a little beside it."""
    bottom, top = axis.get_ylim()
    labels = sorted(labels)
    heights = spread(np.asarray([value for value, _, _ in labels]), BETWEEN * (top - bottom), top)
    for height, (_, name, color) in zip(heights.tolist(), labels, strict=True):
        axis.annotate(
            name,
            (1.02, height),
            xycoords=("axes fraction", "data"),
            color=color,
            fontsize=9,
            verticalalignment="center",
            annotation_clip=False,
        )


def spread(values: Array, least: float, top: float) -> Array:
    """The ascending values, moved so that neighbors are at least `least` apart and none is above `top`."""
    places = np.minimum(values, top)
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + least)
    for i in range(len(places) - 1, -1, -1):
        places[i] = min(places[i], places[i + 1] - least if i + 1 < len(places) else top)
    return places


def _limit(axis: Any, rows: Sequence[Row]) -> None:
    """The range is that of the curves and the handcrafted policy: far below them `random` would press them together."""
    kept = [
        row["success"][key] for row in rows if row["mark"] or row["policy"] == "handcrafted" for key in ("low", "high")
    ]
    kept = kept or [row["success"]["mean"] for row in rows]
    margin = 0.05 * (max(kept) - min(kept)) or 0.05
    axis.set_ylim(min(kept) - margin, max(kept) + margin)
    lines = [(row["policy"], row["success"]["mean"]) for row in rows if not row["mark"]]
    if below := [f"{name}: {mean:.2f}" for name, mean in lines if mean < min(kept) - margin]:
        text = f"below: {', '.join(below)}"
        axis.annotate(text, (0.98, 0.02), xycoords="axes fraction", horizontalalignment="right", fontsize=8)
