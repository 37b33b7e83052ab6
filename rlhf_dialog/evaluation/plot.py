"""The picture of a run: its reward with the parts that add up to it, its KL, and what an evaluation found on held-out prompts."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context, rcParamsDefault
from matplotlib.figure import Figure

from rlhf_dialog.atomic_files import atomic_file

Rows = list[dict[str, Any]]
COLOURS = ("#4c78a8", "#59a14f", "#f2a541", "#b279a2", "#76b7b2", "#e15759")
WINDOW = 5  # iterations of the running mean
KNOWN = {  # rows of an evaluation by their titles, from bottom to top
    "true_replies": "true replies",
    "nearest_train_reply": "nearest training reply",
    "random_train_reply": "random training reply",
    "after": "after PPO",
    "before": "before PPO",
}


@rc_context(rcParamsDefault)  # a matplotlibrc of the working directory could start other programs
def plot(
    rows: Rows, kl_target: float | None, title: str, output: Path, evaluation: dict[str, Any] | None = None
) -> None:
    """Draw the rows of a metrics.jsonl (at least one), and write them to the PNG file `output`.

    `evaluation`: the content of an evaluation.json, whose scores become a third panel.
    """
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
    _rewards(axes[0], rows)
    _kl(axes[1], rows, kl_target)
    if not _scores(axes[2], evaluation or {}):
        line(axes[2], rows, "response/length", "tokens per response")
        axes[2].set_ylim(bottom=0)
        axes[2].set_xlabel("iteration")
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    save_figure(figure, output)


def save_figure(figure: Figure, output: Path) -> None:
    """Write the figure to a file, in the format of its ending, by default PNG."""
    with atomic_file(output) as temporary:
        figure.savefig(temporary, format=output.suffix[1:] or "png", dpi=110)


def _rewards(axis: Any, rows: Rows) -> None:
    """The weighted parts as bands that add up to the score, those below zero downwards."""
    steps = [row["iteration"] for row in rows]
    names = [name for name in rows[0] if name.startswith("reward/") and name.endswith("_weighted")]
    ends = {sign: np.zeros(len(rows)) for sign in (1, -1)}
    for name, colour in zip(names, COLOURS * len(names), strict=False):
        values = _smooth([row.get(name) or 0.0 for row in rows])
        sign = 1 if values.sum() >= 0 else -1
        label = name.removeprefix("reward/").removesuffix("_weighted").replace("_", " ")
        axis.fill_between(steps, ends[sign], ends[sign] + values, color=colour, alpha=0.55, linewidth=0, label=label)
        ends[sign] = ends[sign] + values
    score = [row["objective/score"] for row in rows]
    axis.plot(steps, score, color="black", alpha=0.25, linewidth=1)
    axis.plot(steps, _smooth(score), color="black", linewidth=2, label="score, their sum")
    axis.axhline(score[0], color="grey", linestyle="--", linewidth=1, label="score at the start")
    line(axis, rows, "eval/score", "score on validation", color="black", linestyle="", marker="o")
    axis.set_title("score in training, and its weighted parts", fontsize=10)
    axis.set_xlabel("iteration")
    axis.legend(fontsize=8, loc="best")


def _smooth(values: list[float]) -> Any:
    """The mean of the last WINDOW values at each place, fewer at the beginning."""
    return np.array([np.mean(values[max(0, i + 1 - WINDOW) : i + 1]) for i in range(len(values))])


def _kl(axis: Any, rows: Rows, target: float | None) -> None:
    line(axis, rows, "objective/kl", "KL a token", color="#4c78a8", linewidth=2)
    line(axis, rows, "objective/kl_coef", "its coefficient", color="#f2a541", linestyle=":", linewidth=2)
    if target is not None:
        axis.axhline(target, color="grey", linestyle="--", label="target of the KL")
    axis.set_title("KL to the start, nats a token", fontsize=10)
    axis.set_xlabel("iteration")
    axis.set_ylim(bottom=0)
    if axis.lines:
        axis.legend(fontsize=8, loc="best")


def _scores(axis: Any, evaluation: dict[str, Any]) -> bool:
    """The score of each known row with its interval; False where there is none."""
    every = evaluation | evaluation.get("baselines", {})
    found = {title: every.get(name, {}).get("score") for name, title in KNOWN.items()}
    scores = {title: score for title, score in found.items() if score and score["mean"] is not None}
    for place, (title, score) in enumerate(scores.items()):
        colour = "#e15759" if title == KNOWN["after"] else "#4c78a8"
        axis.plot([score["low"], score["high"]], [place, place], color=colour, linewidth=3, alpha=0.5)
        axis.plot([score["mean"]], [place], "o", color=colour, markersize=8)
        text = f"{score['mean']:.2f}"
        axis.annotate(text, (score["mean"], place), (0, 8), textcoords="offset points", ha="center", fontsize=9)
    if scores:
        axis.set_yticks(range(len(scores)), scores)
        axis.set_ylim(-0.5, len(scores) - 0.2)
        axis.set_title("score on held-out prompts, 95 % intervals", fontsize=10)
        axis.set_xlabel("score of the evaluation")
    return bool(scores)


def line(axis: Any, rows: Rows, name: str, label: str, over: str = "iteration", **style: Any) -> None:
    """The rows that have `name`, over another column."""
    points = [(row[over], row[name]) for row in rows if row.get(name) is not None]
    if points:
        axis.plot(*zip(*points, strict=True), label=label, **style)
    axis.set_title(label, fontsize=10)


OF_A_LANGUAGE_MODEL = {"dialogues": "episodes", "success": "environment/success", "reward": "environment/reward"}


@rc_context(rcParamsDefault)
def plot_success(rows: Rows, title: str, output: Path) -> None:
    """Draw the rows of a run with dialogues (at least one) in two panels, and write them to the PNG file `output`.

    A policy's run has `dialogues`, `success` and `reward`; a language model's has other names for them.
    """
    rows = [{new: row[old] for new, old in OF_A_LANGUAGE_MODEL.items() if old in row} | row for row in rows]
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axis, name in zip(figure.subplots(1, 2), ("success", "reward"), strict=True):
        line(axis, rows, name, "while learning", "dialogues", color="grey", alpha=0.6)
        line(axis, rows, f"eval/{name}", "evaluation", "dialogues", color="black", marker="o", markersize=3)
        known = [row[f"eval/handcrafted_{name}"] for row in rows if f"eval/handcrafted_{name}" in row]
        if known:
            axis.axhline(known[-1], color="tab:blue", linestyle="--", label="handcrafted")
        axis.set_xlabel("dialogues")
        axis.set_title(name, fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="lower right")
    figure.suptitle(title)
    save_figure(figure, output)
