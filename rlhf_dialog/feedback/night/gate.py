"""Is the candidate at least as good as the champion? One statistic over all held-out feedback ever collected.

Concordance: how often, of an answer that was liked and one that was disliked, the liked one has the higher log-ratio to the fixed
first version. Answers are compared with those of the same kind only (thumbs with thumbs); an edit or a choice is a comparison
by itself. The kinds are added up by what they are worth: a choice or an edit as 1, L liked and D disliked answers as
4 L D / (L + D), which is their number where both are equally many. A person's rows weigh less where the cap says so.

The difference of candidate and champion is paired, and its bootstrap draws whole dialogues. No torch here.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from rlhf_dialog.evaluation.intervals import Array, Numbers, resample_counts
from rlhf_dialog.feedback.night.trust import trust_in, trusted
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.examples import HeldOut, heldout_set, read_examples
from rlhf_dialog.feedback.store.progress import so_far
from rlhf_dialog.feedback.store.settings import BotSettings, read_settings

MARGIN = 0.05  # below the champion that the lower bound may always reach
Z = NormalDist().inv_cdf(0.975)  # the lower bound is that of a 95 % interval
OFTEN = 0.8  # of the nights: the power that `smallest_gain` speaks of
AT_ONCE = 2**21  # weights of rows in resamples, so that memory is bounded
ROUNDED = 4  # decimals of a log-ratio: what batches of other shapes change lies below
Scores = Mapping[str, float]  # the log-ratio of each row, by the names of `rows.keys_of`


@dataclass(frozen=True)
class Labelled:
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
class Paired:
    """The n edits or choices: `margins` (2, n), the log-ratio of the better answer less that of the other one."""

    margins: Array
    weights: Array
    units: Numbers

    def sums(self, counts: Array) -> tuple[Array, Array]:
        """As in `Labelled`."""
        weights = counts[:, self.units] * self.weights
        return ((np.sign(self.margins) + 1) / 2) @ weights.T, weights.sum(axis=1)


Kind = Labelled | Paired


@dataclass(frozen=True)
class Comparison:
    """Champion and candidate on the same held-out feedback; concordances from 0 to 1, `standard_error` of their difference."""

    num_events: int
    champion: float
    candidate: float
    low: float  # of the 95 % interval of the difference
    standard_error: float

    @property
    def difference(self) -> float:
        return self.candidate - self.champion

    @property
    def is_enough(self) -> bool:
        """The rule of promotion: not lower, and the lower bound above minus the larger of 5 points and one standard error."""
        return self.difference >= 0 and self.low > -max(MARGIN, self.standard_error)


def compare(heldout: HeldOut, champion: Scores, candidate: Scores, seed: int = 0) -> Comparison:
    """The paired comparison by dialogue. NaN where nothing can be compared."""
    kinds, num_units = kinds_of(heldout, champion, candidate)
    before, after = _concordances(kinds, np.ones((1, num_units)))[:, 0] if kinds else (math.nan, math.nan)
    differences = np.concatenate(list(_differences(kinds, num_units, seed))) if kinds else np.empty(0)
    known = differences[np.isfinite(differences)]
    low = float(np.quantile(known, 0.025)) if len(known) else math.nan
    error = float(known.std(ddof=1)) if len(known) > 1 else math.nan
    return Comparison(len(heldout), float(before), float(after), low, error)


def is_comparable(heldout: HeldOut) -> bool:
    """Whether there is anything to compare: a liked and a disliked answer of one kind, an edit or a choice."""
    liked, disliked = ({one.kind for one in heldout.answers if one.liked is label} for label in (True, False))
    return bool(heldout.pairs or liked & disliked)


def kinds_of(heldout: HeldOut, champion: Scores, candidate: Scores) -> tuple[list[Kind], int]:
    """The held-out feedback by kind, and the number of its dialogues."""
    dialogues = {name: i for i, name in enumerate(dict.fromkeys(one.dialogue for one in heldout.all))}
    systems = (champion, candidate)
    kinds: list[Kind] = []
    for kind in sorted({one.kind for one in heldout.answers}):
        some = [one for one in heldout.answers if one.kind == kind]
        scores = _rounded([[system[str(one.event)] for one in some] for system in systems])
        liked = np.asarray([one.liked for one in some])
        kinds.append(Labelled(scores, liked, *_weights_and_units(some, heldout, dialogues)))
    if pairs := heldout.pairs:
        margins = [[system[f"{one.event}+"] - system[f"{one.event}-"] for one in pairs] for system in systems]
        kinds.append(Paired(_rounded(margins), *_weights_and_units(pairs, heldout, dialogues)))
    return kinds, len(dialogues)


def _weights_and_units(some: Any, heldout: HeldOut, dialogues: dict[str, int]) -> tuple[Array, Numbers]:
    weights = np.asarray([heldout.weights[one.event] for one in some])
    return weights, np.asarray([dialogues[one.dialogue] for one in some], dtype=np.int64)


def _rounded(values: list[list[float]]) -> Array:
    rounded: Array = np.asarray(values, dtype=np.float64).round(ROUNDED)
    return rounded


def _concordances(kinds: list[Kind], counts: Array) -> Array:
    """The statistic of champion and candidate (2, R) in resamples; NaN where one holds nothing to compare."""
    sums = [kind.sums(counts) for kind in kinds]
    worth = np.sum([one for _, one in sums], axis=0)
    hits = np.sum([one for one, _ in sums], axis=0)
    return np.divide(hits, worth, out=np.full_like(hits, np.nan), where=worth > 0)


def _differences(kinds: list[Kind], num_units: int, seed: int) -> Iterator[Array]:
    counts = resample_counts(num_units, seed)
    num_rows = max(len(kind.weights) for kind in kinds)
    for part in np.array_split(counts, max(1, math.ceil(counts.shape[0] * num_rows / AT_ONCE))):
        before, after = _concordances(kinds, part)
        yield after - before


def _ratio(top: Array, bottom: Array) -> Array:
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


# --- power ---


def smallest_gain(standard_error: float) -> float:
    """The true gain in concordance that is promoted on four nights of five, when the difference has this standard error."""
    return _needed(standard_error) + NormalDist().inv_cdf(OFTEN) * standard_error


def chance(gain: float, standard_error: float) -> float:
    """How often a true gain is promoted."""
    return 1 - NormalDist(gain, standard_error).cdf(_needed(standard_error))


def _needed(standard_error: float) -> float:
    """The smallest difference that the rule promotes."""
    return max(0.0, Z * standard_error - max(MARGIN, standard_error))


def expected_error(num_events: int, last_gate: Mapping[str, Any] | None = None) -> float:
    """The standard error of the next difference: that of the last comparison, less by the feedback that came since.

    Before the first comparison: that of the concordance of equally many liked and disliked answers without any order,
    1 / sqrt(3 n) (Mann & Whitney 1947), the champion being the first version, whose log-ratios are all 0.
    """
    error, then = (last_gate or {}).get("standard_error"), (last_gate or {}).get("num_events")
    if isinstance(error, int | float) and isinstance(then, int) and then > 0:
        return max(error * math.sqrt(then / max(num_events, 1)), 1 / (2 * max(num_events, 1)))  # half an event at least
    return 1 / math.sqrt(3 * max(num_events, 1))


def power_line(bot: Bot) -> str:
    """What the gate can see today, for `status`: how much held-out feedback there is, and which gain is seen.

    Raises UserError when settings or store cannot be read.
    """
    settings, store = read_settings(bot.settings_path), bot.store()
    try:
        examples = read_examples(store)
    finally:
        store.close()
    num_events = len(heldout_set(trusted(examples, trust_in(examples, settings)), settings))
    return power_of(num_events, len(examples), settings, last_gate(bot))


def power_of(num_events: int, num_ratings: int, settings: BotSettings, gate: Mapping[str, Any] | None = None) -> str:
    """`power_line` of this number of held-out events, of all ratings, after the `gate` of the last night."""
    if num_events < settings.min_heldout:
        return so_far(num_ratings, num_events, settings)
    gain = smallest_gain(expected_error(num_events, gate))
    return (
        f"{num_events} held-out events: the gate can see +{100 * gain:.0f} points today (a true gain of that size is promoted "
        "on four nights of five)"
    )


def last_gate(bot: Bot) -> dict[str, Any] | None:
    """The gate's record of the newest version that has one."""
    versions = bot.lineage()["versions"]
    return next((versions[name]["gate"] for name in sorted(versions, reverse=True) if versions[name]["gate"]), None)
