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
    """The mean of `objective/gain` over those of the last 10 iterations in which it is known; every reply counts alike.

    If it is unknown in all of them: the score of these iterations less that of the first. The first row is left out: iteration
    1 comes before the first step. `rows` may begin with any iterations, but have the one before the last 10. None when there
    is no later iteration, or when the rows have no standard errors.
    """
    pairs = [(row, row["episodes"] - before["episodes"]) for before, row in pairwise(rows)]
    recent = [(row, replies) for row, replies in pairs if replies > 0][-NUM_ITERATIONS:]
    if known := _with_errors(recent, "objective/gain"):
        mean, error, degrees = _weighted_mean(known, "objective/gain", num_responses_per_prompt)
        return Gain(mean, t_quantile(degrees) * error, sum(replies for _, replies in known), "the reference")
    name = "objective/score"
    last, first = _with_errors(recent, name), _with_errors([(row, row["episodes"]) for row in rows[:1]], name)
    if not last or not first or rows[0]["iteration"] != 1:
        return None
    mean, error, degrees = _weighted_mean(last, name, num_responses_per_prompt)
    start, start_error, more = _weighted_mean(first, name, num_responses_per_prompt)
    half = t_quantile(degrees + more) * math.hypot(error, start_error)
    return Gain(mean - start, half, sum(replies for _, replies in last), "iteration 1")


def _with_errors(rows: Sequence[tuple[Row, int]], name: str) -> list[tuple[Row, int]]:
    """The rows that have both the metric and its standard error."""
    return [
        (row, replies)
        for row, replies in rows
        if all((value := row.get(key)) is not None and math.isfinite(value) for key in (name, f"{name}_se"))
    ]


def _weighted_mean(rows: Sequence[tuple[Row, int]], name: str, group_size: int) -> tuple[float, float, int]:
    """Mean, standard error and degrees of freedom of a metric over rows with these numbers of replies."""
    total = sum(replies for _, replies in rows)
    mean = math.fsum(row[name] * replies for row, replies in rows) / total
    error = math.hypot(*(row[f"{name}_se"] * replies for row, replies in rows)) / total
    return mean, error, max(sum(replies // group_size - 1 for _, replies in rows), 1)
