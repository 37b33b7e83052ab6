"""The plot of a simulated month: the share of liked answers over the nights, and which of them were promoted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

KINDS = (  # promoted, marker, colour, label
    (True, "^", "tab:green", "promoted"),
    (False, "x", "tab:red", "refused"),
    (None, ".", "tab:grey", "nothing changed"),
)


def plot_liked(rows: Sequence[dict[str, Any]], title: str, output: Path) -> None:
    """Draw the rows of a month (`night`, `liked`, `promoted`; at least one) into the PNG file `output`."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    nights, shares = [row["night"] for row in rows], [100 * row["liked"] for row in rows]
    axis.plot(nights, shares, color="tab:blue", zorder=1)
    for promoted, marker, colour, label in KINDS:
        some = [i for i, row in enumerate(rows) if row["promoted"] is promoted]
        if some:
            axis.scatter(
                [nights[i] for i in some], [shares[i] for i in some], marker=marker, color=colour, label=label, zorder=2
            )
    axis.axhline(shares[0], color="grey", linestyle="--", label="the first version")
    axis.set_xlabel("night")
    axis.set_ylabel("liked answers to held-out prompts, %")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    axis.set_title(title, fontsize=10)
    figure.savefig(output, dpi=110)
