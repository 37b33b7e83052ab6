"""What A and B should reach, each with its numbers: met or missed. The percentages of OpenRL's documentation are no targets."""

from collections.abc import Iterator

from experiments.dailydialog.pretrained.choosing import DISTINCT, LENGTH
from experiments.dailydialog.systems import System, change
from experiments.dailydialog.targets import ENCODER, JUDGES, MUTUAL, Target, above_zero, percent, relative

MARGINS = {
    "meteor_margin": "METEOR margin",
    "rouge1_margin": "ROUGE-1 margin",
    "judge_accuracy": "intent by the judge",
    "judge_2_accuracy": "intent by the second judge",
}
GAIN = 0.25  # of R@10
OF_TWO = {
    **{f"{metric}_r10": f"R@10 by the {judge}" for metric, judge in JUDGES.items()},
    ENCODER: "MiniLM's similarity",
}
OF_TWO |= {MUTUAL: "mutual information"}


def of_a(start: System, ours: System, beside: dict[str, System | None], people: System) -> Iterator[Target]:
    """The reward of OpenRL's documentation. beside: what it has to pass too, by title; None: not measured."""
    for title, other in {start.title: start, **beside}.items():
        for metric, name in MARGINS.items():
            yield above_zero(f"{name} above that of {title}", change(other, ours, metric) if other else None)
    distinct = _points("distinct_2", start, ours)
    share = distinct and distinct[1] / distinct[0] if distinct and distinct[0] else None
    yield Target(f"distinct-2 at least {DISTINCT:g} of SFT's", _met(share and share >= DISTINCT), _number(share))
    copies = _points("copied_two", people, ours)
    yield Target(
        "copies not above people's",
        _met(copies and copies[1] <= copies[0]),
        f"{copies[1]:.3f}, people {copies[0]:.3f}" if copies else "-",
    )
    words = _points("mean_words", start, ours)
    longer = words[1] / words[0] - 1 if words and words[0] else None
    yield Target(
        f"length within {LENGTH:.0%} of SFT's",
        None if longer is None else abs(longer) <= LENGTH,
        "-" if longer is None else f"{longer:+.0%}",
    )


def of_b(start: System, learned: System, two: System, four: System) -> Iterator[Target]:
    """The learned reward, beside the best of two and of four replies of its start."""
    for metric, judge in JUDGES.items():
        gain = relative(start, learned, f"{metric}_r10")
        met = None if gain is None else gain["mean"] >= GAIN and gain["low"] > 0
        yield Target(f"R@10 +{GAIN:.0%} by the {judge}, low end above 0", met, percent(gain))
    for metric, name in OF_TWO.items():
        yield above_zero(f"{name} above that of {two.title}", change(two, learned, metric))
    passed = [name for metric, name in OF_TWO.items() if (moved := change(four, learned, metric)) and moved["low"] > 0]
    yield Target(f"moonshot: above {four.title} by one judge", bool(passed), ", ".join(passed) or "by none")


def _points(metric: str, first: System, second: System) -> tuple[float, float] | None:
    one, other = first.point(metric), second.point(metric)
    return None if one is None or other is None else (one, other)


def _met(reached: object) -> bool | None:
    return None if reached is None else bool(reached)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
