"""What the newest iterations of a run have gained, from the lines of its metrics.jsonl."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rlhf_dialog.evaluation.intervals import t_quantile

NUM_ITERATIONS = 10
Row = dict[str, Any]


@dataclass(frozen=True)
class Gain:
    """A mean over `num_replies` replies with half the width of its 95 % interval.

    over: "the reference" by `objective/gain`, or "iteration 1" by the difference of the scores
    """

    mean: float
    half: float
    num_replies: int
    over: str

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    def __str__(self) -> str:
        return f"{self.mean:+.3g} [{self.low:+.3g}, {self.high:+.3g}]"

    @property
    def missing_replies(self) -> int | None:
        """How many more replies would show a gain of this size, if it is real; None if it is not above 0."""
        if self.mean <= 0:
            return None
        return max(math.ceil(self.num_replies * ((self.half / self.mean) ** 2 - 1)), 0)


def recent_gain(rows: Sequence[Row], num_responses_per_prompt: int = 1) -> Gain | None:
    """The mean of `objective/gain` over the last 10 iterations, in which every reply counts alike.

    If it is unknown for one of them: the score of these iterations less that of the first. The first iteration itself is left
    out, since it comes before the first step. `rows` may begin with any iterations, but have the one before the last 10. None
    when there is no later iteration, or when the rows have no standard errors.
    """
    pairs = [(row, row["episodes"] - before["episodes"]) for before, row in pairwise(rows)]
    recent = [(row, replies) for row, replies in pairs if row["iteration"] > 1 and replies > 0][-NUM_ITERATIONS:]
    if not recent:
        return None
    gain = _weighted_mean(recent, "objective/gain", num_responses_per_prompt)
    if gain:
        mean, error, degrees = gain
        over = "the reference"
    else:
        last = _weighted_mean(recent, "objective/score", num_responses_per_prompt)
        first = _weighted_mean([(rows[0], rows[0]["episodes"])], "objective/score", num_responses_per_prompt)
        if not last or not first or rows[0]["iteration"] != 1:
            return None
        mean, error, degrees = last[0] - first[0], math.hypot(last[1], first[1]), last[2] + first[2]
        over = "iteration 1"
    return Gain(mean, t_quantile(degrees) * error, sum(replies for _, replies in recent), over)


def _weighted_mean(rows: Sequence[tuple[Row, int]], name: str, group_size: int) -> tuple[float, float, int] | None:
    """Mean, standard error and degrees of freedom of a metric over rows with these numbers of replies; None if one is unknown."""
    means, errors = ([row.get(key, math.nan) for row, _ in rows] for key in (name, f"{name}_se"))
    if any(x is None or not math.isfinite(x) for x in (*means, *errors)):
        return None
    counts = [replies for _, replies in rows]
    total = sum(counts)
    mean = math.fsum(mean * replies for mean, replies in zip(means, counts, strict=True)) / total
    error = math.hypot(*(error * replies for error, replies in zip(errors, counts, strict=True))) / total
    return mean, error, max(sum(replies // group_size - 1 for replies in counts), 1)
