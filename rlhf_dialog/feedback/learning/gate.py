"""Is the candidate better than the champion? One statistic over all held-out feedback ever collected.

Concordance: how often, of an answer that was liked and one that was disliked, the liked one has the higher log-ratio to the fixed
first version. Answers are compared with those of the same kind only (thumbs with thumbs); an edit or a choice is a comparison
by itself. The kinds are added up by what they are worth: a choice or an edit as 1, L liked and D disliked answers as
4 L D / (L + D), which is their number where both are equally many. A person's rows weigh less where the cap says so.

The difference of candidate and champion is paired, and its interval draws people, with all that they said, from five people on;
of fewer it draws dialogues, and is an interval "of these n people". No torch here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from rlhf_dialog.evaluation.intervals import Array, Numbers, bootstrap_bounds, half_width
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.examples import Example, HeldOut, describe_progress
from rlhf_dialog.feedback.store.settings import BotSettings

SLACK = 1 / 3  # standard errors below 0 that the bound of the 95 % interval may reach: promoted by chance in one of 20
ENOUGH_PEOPLE = 5  # to be drawn
OFTEN = 0.8  # of the nights: the power that `smallest_gain` speaks of
AT_ONCE = 2**21  # weights of rows in resamples, so that memory is bounded
ROUNDED = 4  # decimals of a log-ratio: what batches of other shapes change lies below
Scores = Mapping[str, float]  # the log-ratio of each row, by the names of `tokenized_examples.row_names`


@dataclass(frozen=True)
class LabelledKind:
    """The n answers of one kind: `scores` (2, n) of champion and candidate, `liked`, `weights` and `units` (n,)."""

    scores: Array
    liked: Any
    weights: Array
    units: Numbers

    def sums(self, counts: Array) -> tuple[Array, Array]:
        """Concordance times worth (2, R) and worth (R,) in resamples that hold the units so often: `counts` (R, U)."""
        weights = counts[:, self.units] * self.weights
        return np.stack([self._hits(scores, weights) for scores in self.scores]), self._worth(weights)

    def _hits(self, scores: Array, weights: Array) -> Array:
        """In n log n: sorted by score, each group of equal scores against all disliked weight below it."""
        order = np.argsort(scores, kind="stable")
        ordered, sorted_weights = scores[order], weights[:, order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        liked, disliked = (
            np.add.reduceat(np.where(own, sorted_weights, 0.0), starts, axis=1)
            for own in (self.liked[order], ~self.liked[order])
        )
        below = disliked.cumsum(axis=1) - disliked
        return _ratio(4 * (liked * (below + disliked / 2)).sum(axis=1), weights.sum(axis=1))

    def _worth(self, weights: Array) -> Array:
        liked, whole = np.where(self.liked, weights, 0.0).sum(axis=1), weights.sum(axis=1)
        return _ratio(4 * liked * (whole - liked), whole)


@dataclass(frozen=True)
class PairedKind:
    """The n edits or choices: `margins` (2, n), the log-ratio of the better answer less that of the other one."""

    margins: Array
    weights: Array
    units: Numbers

    def sums(self, counts: Array) -> tuple[Array, Array]:
        """As in `LabelledKind`."""
        weights = counts[:, self.units] * self.weights
        return ((np.sign(self.margins) + 1) / 2) @ weights.T, weights.sum(axis=1)


Kind = LabelledKind | PairedKind


@dataclass(frozen=True)
class GateComparison:
    """Champion and candidate on the same held-out feedback; concordances from 0 to 1, `standard_error` of their difference."""

    num_events: int
    champion: float
    candidate: float
    low: float  # of the 95 % interval of the difference
    standard_error: float
    num_people: int = 0  # who gave the held-out feedback

    @property
    def difference(self) -> float:
        return self.candidate - self.champion

    @property
    def is_enough(self) -> bool:
        """The rule of promotion: the lower bound is above minus a third of a standard error."""
        return self.difference > 0 and self.low > -SLACK * self.standard_error


def compare(heldout: HeldOut, champion: Scores, candidate: Scores, seed: int = 0) -> GateComparison:
    """The paired comparison. NaN where nothing can be compared."""
    kinds, num_units = group_by_kind(heldout, champion, candidate)
    people = len(heldout.people)
    if not kinds:
        return GateComparison(len(heldout), math.nan, math.nan, math.nan, math.nan, people)
    before, after = (float(one) for one in _concordances(kinds, np.ones((1, num_units)))[:, 0])
    found = bootstrap_bounds(after - before, lambda counts: _differences(kinds, counts), num_units, seed)
    return GateComparison(len(heldout), before, after, found.low, found.standard_error, people)


def describe_people(num_people: int) -> str:
    """` of these 3 people`: an interval that draws their dialogues says nothing of others. Empty from five people on."""
    if num_people >= ENOUGH_PEOPLE:
        return ""
    return f" of {'this one person' if num_people == 1 else f'these {num_people} people' if num_people else 'these samples'}"


def is_comparable(heldout: HeldOut) -> bool:
    """Whether there is anything to compare: a liked and a disliked answer of one kind, an edit or a choice."""
    liked, disliked = ({one.kind for one in heldout.answers if one.liked is label} for label in (True, False))
    return bool(heldout.pairs or liked & disliked)


def group_by_kind(heldout: HeldOut, champion: Scores, candidate: Scores) -> tuple[list[Kind], int]:
    """The held-out feedback by kind, and the number of units that are drawn: its people, or its dialogues."""
    unit = "person" if len(heldout.people) >= ENOUGH_PEOPLE else "dialogue"
    numbers = {name: i for i, name in enumerate(dict.fromkeys(getattr(one, unit) for one in heldout.all))}
    systems = (champion, candidate)
    kinds: list[Kind] = []

    def units_and_weights(some: Sequence[Example]) -> tuple[Numbers, Array]:
        units = np.asarray([numbers[getattr(one, unit)] for one in some], dtype=np.int64)
        return units, np.asarray(heldout.weights_of(some))

    for kind in sorted({example.kind for example in heldout.answers}):
        answers = [example for example in heldout.answers if example.kind == kind]
        scores = [[system[str(example.event)] for example in answers] for system in systems]
        units, weights = units_and_weights(answers)
        liked = np.asarray([example.liked for example in answers])
        kinds.append(LabelledKind(np.asarray(scores, dtype=np.float64).round(ROUNDED), liked, weights, units))
    if pairs := heldout.pairs:
        margins = [[system[f"{one.event}+"] - system[f"{one.event}-"] for one in pairs] for system in systems]
        units, weights = units_and_weights(pairs)
        kinds.append(PairedKind(np.asarray(margins, dtype=np.float64).round(ROUNDED), weights, units))
    return kinds, len(numbers)


def _concordances(kinds: list[Kind], counts: Array) -> Array:
    """The statistic of champion and candidate (2, R) in resamples; NaN where one holds nothing to compare."""
    sums = [kind.sums(counts) for kind in kinds]
    worth = np.sum([one for _, one in sums], axis=0)
    hits = np.sum([one for one, _ in sums], axis=0)
    return np.divide(hits, worth, out=np.full_like(hits, np.nan), where=worth > 0)


def _differences(kinds: list[Kind], counts: Array) -> Array:
    """Candidate less champion in each resample (R,)."""
    num_rows = max(len(kind.weights) for kind in kinds)
    parts = np.array_split(counts, max(1, math.ceil(counts.shape[0] * num_rows / AT_ONCE)))
    return np.concatenate([np.diff(_concordances(kinds, part), axis=0)[0] for part in parts])


def _ratio(top: Array, bottom: Array) -> Array:
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


# --- power ---


def smallest_gain(standard_error: float, num_units: int) -> float:
    """The true gain in concordance that is promoted on four nights of five; `num_units` people or dialogues are drawn."""
    smallest = (half_width(num_units) - SLACK) * standard_error  # that the rule promotes
    return smallest + NormalDist().inv_cdf(OFTEN) * standard_error


def expected_error(num_events: int, last_gate: Mapping[str, Any] | None = None) -> float:
    """The standard error of the next difference: that of the last comparison, less by the feedback that came since.

    Before the first comparison: that of the concordance of equally many liked and disliked answers without any order,
    1 / sqrt(3 n) (Mann & Whitney 1947), the champion being the first version, whose log-ratios are all 0.
    """
    error, then = (last_gate or {}).get("standard_error"), (last_gate or {}).get("num_events")
    if isinstance(error, int | float) and isinstance(then, int) and then > 0:
        return max(error * math.sqrt(then / max(num_events, 1)), 1 / (2 * max(num_events, 1)))  # half an event at least
    return 1 / math.sqrt(3 * max(num_events, 1))


def describe_power(
    heldout: HeldOut, num_ratings: int, settings: BotSettings, gate: Mapping[str, Any] | None = None
) -> str:
    """How much held-out feedback there is, and which gain the gate sees today; `gate` is its record of the last night."""
    num_events, people = len(heldout), len(heldout.people)
    if num_events < settings.min_heldout:
        return describe_progress(num_ratings, num_events, settings)
    gain = smallest_gain(expected_error(num_events, gate), people if people >= ENOUGH_PEOPLE else num_events)
    return (
        f"{num_events} held-out events{describe_people(people)}: the gate can see +{100 * gain:.0f} points today (a true "
        "gain of that size is promoted on four nights of five)"
    )


def last_gate(bot: Bot) -> dict[str, Any] | None:
    """The gate's record of the newest version that has one."""
    versions = bot.lineage()["versions"]
    return next((versions[name]["gate"] for name in sorted(versions, reverse=True) if versions[name]["gate"]), None)
