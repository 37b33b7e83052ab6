"""What PPO is worth beside choosing among several replies: sentences, and a picture of each measure against KL."""

from collections.abc import Iterator
from pathlib import Path

from experiments.dailydialog.reading import WITH_INTERVAL, title_of
from experiments.dailydialog.sizes import BEST, COUNTS, RLOO, START
from experiments.dailydialog.systems import System
from experiments.frontier import Curve, plot_frontier, worth

MEASURES = ("relevance_r10", "relevance_2_r10", "encoder_similarity")  # of the judges that are there, after the score


def curves(rows: dict[str, System]) -> dict[str, Curve]:
    """`before` and `after`, from one reply to the best of the largest count that was measured."""
    found: dict[str, Curve] = {}
    for name, system in (("before", START), ("after", RLOO)):
        prefix = "" if system == START else f"{system}_"
        titles = {1: title_of(system)} | {n: title_of(f"{prefix}{BEST}_{n}") for n in COUNTS}
        found[name] = [point(rows[title], n) for n, title in titles.items() if title in rows]
    return found


def point(system: System, n: int) -> dict[str, float]:
    """The means of one system, which is the best of n replies."""
    values = {metric: system.point(metric) for metric in ("kl", "score", *MEASURES)}
    return {"n": float(n)} | {metric: value for metric, value in values.items() if value is not None}


def sentences(rows: dict[str, System]) -> Iterator[str]:
    """One for each measure, as a list."""
    for sentence in worth(curves(rows)):
        metric = sentence.removeprefix("by ").split()[0]
        yield f"- By{sentence.removeprefix('by').replace(metric, WITH_INTERVAL.get(metric, metric), 1)}."


def draw(rows: dict[str, System], output: Path) -> None:
    """The picture, as a PNG file."""
    plot_frontier(curves(rows), output)
