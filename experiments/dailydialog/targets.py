"""What PPO should reach on DailyDialog, each with its numbers: met or missed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.dailydialog.systems import System, change
from rlhf_dialog.evaluation.intervals import Interval

JUDGES = {"relevance": "convolution", "relevance_2": "bag"}  # metric: the judge in words
R10, R10_LOW, R1, MOST_OF_GAIN = 0.25, 0.15, 0.40, 1 / 3
ENCODER, MUTUAL = "encoder_similarity", "mutual_information"  # judges that never saw the data
NO_WORSE = {"judge_macro_f1": ("act F1", 1), "copied_two": ("copies of two turns", -1), "truncated": ("truncation", -1)}


@dataclass(frozen=True)
class Target:
    """met: None where a number is missing."""

    name: str
    met: bool | None
    numbers: str

    @property
    def word(self) -> str:
        return "not measured" if self.met is None else "met" if self.met else "missed"


def targets(
    start: System,
    agents: System,
    best: System,
    on_best: System,
    biases: Sequence[System],
    read: tuple[System, System] | None = None,
    matched: System | None = None,
) -> Iterator[Target]:
    """Every target of the agents at one temperature. Intervals in percent are those of the difference, of the start's mean.

    biases: the start with a bias of each kind; read: start and agents as far as a pretrained language model has read them at
    this temperature; matched: the start with the agents' distinct-2.
    """
    from experiments.logit_bias_baseline import gain_share  # which imports torch

    for before, beside in ((start, ""), (matched, " at equal distinct-2")):
        for metric, judge in JUDGES.items():
            r10 = relative(before, agents, f"{metric}_r10") if before else None
            met = None if r10 is None else r10["mean"] >= R10 and r10["low"] > R10_LOW
            name = f"R@10 +{R10:.0%} by the {judge}{beside}, low end above +{R10_LOW:.0%}"
            yield Target(name, met, percent(r10))
    for metric, judge in JUDGES.items():
        r1 = relative(start, agents, f"{metric}_r1")
        yield Target(f"R@1 +{R1:.0%} by the {judge}", None if r1 is None else r1["mean"] >= R1, percent(r1))
    for system in (best, on_best):
        for metric, judge in JUDGES.items():
            name = f"R@10 above that of {system.title} by the {judge}"
            yield above_zero(name, change(system, agents, f"{metric}_r10"))
    yield above_zero("MiniLM's similarity rises", change(start, agents, ENCODER))
    yield above_zero(f"MiniLM's similarity above that of {best.title}", change(best, agents, ENCODER))
    yield above_zero("SmolLM2's mutual information rises", change(*read, MUTUAL) if read else None)
    for bias in biases:
        for metric, judge in JUDGES.items():
            points = [one.point(f"{metric}_r10") for one in (bias, agents, start)]
            share = None if None in points else gain_share(*(point or 0.0 for point in points))
            name = f"{bias.title}: at most a third of the gain in R@10 by the {judge}"
            yield Target(
                name, share is not None and share <= MOST_OF_GAIN, "no gain" if share is None else f"{share:.0%}"
            )
    for metric, (name, sign) in NO_WORSE.items():
        moved = change(start, agents, metric)
        met = None if moved is None else (moved["high"] >= 0 if sign > 0 else moved["low"] <= 0)
        yield Target(f"{name} no worse", met, shown(moved))


def above_zero(name: str, moved: Interval | None) -> Target:
    """Met where the whole interval is above 0."""
    return Target(name, None if moved is None else moved["low"] > 0, shown(moved))


def relative(start: System, agents: System, metric: str) -> Interval | None:
    """The difference as a share of the start's mean; None where that is 0."""
    moved, before = change(start, agents, metric), start.point(metric)
    return None if moved is None or not before else {name: number / before for name, number in moved.items()}


def shown(found: Interval | None) -> str:
    return "-" if found is None else f"{found['mean']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}]"


def percent(found: Interval | None) -> str:
    return "-" if found is None else f"{found['mean']:+.0%} [{found['low']:+.0%}, {found['high']:+.0%}]"
