"""What training is worth beside choosing: each measure against the KL a reply, of the agent and of the best of n replies."""

import math
from itertools import pairwise
from pathlib import Path

Curve = list[dict[str, float]]  # n (replies of which the best was taken), kl (nats a reply), and every measure
COLORS = {"before": "#0072B2", "after": "#D55E00"}
STYLES = {"before": "o-", "after": "s--"}
NAMES = {"before": "start", "after": "agent"}


def worth(curves: dict[str, Curve]) -> list[str]:
    """For each measure one sentence: the agent is worth the best of how many replies of its start, at the KL of how many."""
    agent = curves["after"][0]
    best_of = n_with_kl(agent["kl"])
    sentences = []
    for metric in (name for name in agent if name not in ("n", "kl")):
        if len(curves["before"]) > 1 and math.isfinite(agent[metric]):
            n = equal_n(curves["before"], metric, agent[metric])
            last = curves["before"][-1]["n"]
            number = f"more than the best of {last:g}" if n > last else f"the best of {n:.1f}"
            number = "less than one reply" if n < 1 else number
            kl = f"at the KL of the best of {best_of:.1f}"
            sentences.append(f"by {metric} the agent is worth {number} of its start's, {kl}")
    return sentences


def equal_n(curve: Curve, metric: str, value: float) -> float:
    """The n at which the curve reaches the value, straight in log n between its points; 0 below its first one, inf above all."""
    if value < curve[0][metric]:
        return 0.0
    for low, high in pairwise(curve):
        if low[metric] <= value <= high[metric] and low[metric] < high[metric]:
            share = (value - low[metric]) / (high[metric] - low[metric])
            return float(low["n"] * (high["n"] / low["n"]) ** share)
    return math.inf if value > max(point[metric] for point in curve) else float(curve[0]["n"])


def best_of_n_kl(n: float) -> float:
    """log n - (n - 1) / n: an upper bound of the KL in nats of the best of n samples (Beirami et al. 2024, arXiv 2401.01879)."""
    return math.log(n) - (n - 1) / n


def n_with_kl(kl: float) -> float:
    """The n, not a whole number, whose `best_of_n_kl` is `kl`; 1 for a `kl` of at most 0."""
    low, high = 1.0, 2.0
    while best_of_n_kl(high) < kl:
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if best_of_n_kl(middle) < kl else (low, middle)
    return low


def plot_frontier(curves: dict[str, Curve], output: Path) -> None:
    """Draw the curves, a panel for each measure, and write them to the PNG file `output`."""
    from matplotlib import rc_context, rcParamsDefault
    from matplotlib.figure import Figure

    from rlhf_dialog.evaluation.plot import save_figure

    with rc_context(rcParamsDefault):
        metrics = [name for name in curves["after"][0] if name not in ("n", "kl")]
        figure = Figure(figsize=(4.2 * len(metrics) + 0.6, 3.8), layout="constrained")
        for axis, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
            for system, curve in curves.items():
                places, values = [point["kl"] for point in curve], [point[metric] for point in curve]
                axis.plot(places, values, STYLES[system], color=COLORS[system], markersize=4)
                for point in curve:
                    label = NAMES[system] if point["n"] == 1 else f"best of {point['n']:g}"
                    axis.annotate(label, (point["kl"], point[metric]), (4, 4), textcoords="offset points", fontsize=8)
            axis.set_title(metric.replace("_", " "), fontsize=10)
            axis.set_xlabel("KL a reply from the start, nats")
            axis.margins(x=0.18, y=0.12)
            axis.grid(alpha=0.3)
        save_figure(figure, output)
