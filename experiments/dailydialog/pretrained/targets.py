"""What PPO should reach, each with its numbers: met or missed. The percentages of OpenRL's documentation are no targets."""

from collections.abc import Iterator

from experiments.dailydialog.pretrained.choosing import DISTINCT, LENGTH
from experiments.dailydialog.systems import System, change
from experiments.dailydialog.targets import Target, above_zero


def of_ppo(start: System, ours: System, matched: System | None = None) -> Iterator[Target]:
    """Beside the SFT model, and where it was measured beside the SFT model at the temperature with the distinct-2 of PPO."""
    gains = [change(start, System(ours.title, [draws]), "score") for draws in ours.seeds]
    points = [gain["mean"] for gain in gains if gain]
    yield Target(
        "own reward above SFT's in each seed",
        all(point > 0 for point in points) if len(points) == len(gains) else None,
        ", ".join(f"{point:+.3f}" for point in points) or "-",
    )
    yield above_zero("own reward above SFT's", change(start, ours, "score"))
    yield above_zero("METEOR margin above SFT's", change(start, ours, "meteor_margin"))
    if matched:
        yield above_zero(f"own reward above that of {matched.title}", change(matched, ours, "score"))
    words = _points("mean_words", start, ours)
    longer = words[1] / words[0] - 1 if words and words[0] else None
    yield Target(
        f"length within {LENGTH:.0%} of SFT's",
        None if longer is None else abs(longer) <= LENGTH,
        "-" if longer is None else f"{longer:+.0%}",
    )
    distinct = _points("distinct_2", start, ours)
    share = distinct[1] / distinct[0] if distinct and distinct[0] else None
    yield Target(
        f"distinct-2 at least {DISTINCT:g} of SFT's",
        None if share is None else share >= DISTINCT,
        "-" if share is None else f"{share:.2f}",
    )


def _points(metric: str, first: System, second: System) -> tuple[float, float] | None:
    one, other = first.point(metric), second.point(metric)
    return None if one is None or other is None else (one, other)
