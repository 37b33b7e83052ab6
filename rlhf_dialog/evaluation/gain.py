"""What the newest iterations of a run have gained over the reference, from the lines of its metrics.jsonl.

Of a reply, r is its reward, b the mean reward of the other replies to its prompt (of all other replies of the iteration where
each prompt has one), and w = p_reference / p_policy the ratio of the probabilities of all its tokens. Of a prompt,
D = sum(r - b), A = sum(w (r - b)) and W = sum(w) over its replies. Over all prompts and all N replies of some iterations the
gain is

    sum D / N - sum A / sum W

the mean gain of their policies: self-normalised importance sampling (Owen 2013, Monte Carlo theory, methods and examples, chapter
9). Its variance is sum u^2 P / (P - 1) with u = D / N - (A - (sum A / sum W) W) / sum W of each of the P prompts.

A line has what this needs under `gain_sums/`: N and P, the sums over prompts of W, WW and `kl` = -log w, and of D, A, DD, AA, DA,
DW and AW, for the whole reward and as `gain_sums/<part>/` for each of its parts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rlhf_dialog.evaluation.intervals import t_quantile

NUM_ITERATIONS = 10
SUMS = "gain_sums/"
OF_WEIGHTS, OF_REWARDS = ("N", "P", "W", "WW", "kl"), ("D", "A", "DD", "AA", "DA", "DW", "AW")
LARGEST_KL = 1.0  # nats per reply: farther from the reference the gain is not known
MOST = 1e70  # larger numbers, which no run has, count as unknown, because their products overflow
REFERENCE, START, FIRST_QUARTER = "the reference", "iteration 1", "the first quarter of the iterations"
TOO_FAR = "the gain over the reference is unknown, too far from the reference"
OLDER = "the mean of single iterations, which is biased, because lines of an older version have no `gain_sums/`"
Row = dict[str, Any]


@dataclass(frozen=True)
class Gain:
    """A mean over `num_replies` replies with half the width of its 95 % interval.

    over: "the reference", or "iteration 1" or "the first quarter of the iterations" by the difference of the scores
    note: why it is not the gain over the reference, or another estimate than usual
    """

    mean: float
    half: float
    num_replies: int
    over: str
    note: str = ""

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
        ratio = self.half / self.mean
        missing = self.num_replies * (ratio * ratio - 1)
        return max(math.ceil(missing), 0) if math.isfinite(missing) else None


def recent_gain(
    rows: Sequence[Row], num_responses_per_prompt: int = 1, num_iterations: int = NUM_ITERATIONS
) -> Gain | None:
    """The gain over the reference of the newest iterations together, of those in which it is known.

    Where it is unknown, or the policies are too far from the reference: the score of these iterations less that of the first. If
    a line has no `gain_sums/`: the mean of `objective/gain`, by the number of replies. The first row is left out: iteration 1
    comes before the first step. `rows` may begin with any iterations, but have the one before the newest. None when there is no
    later iteration, or when the rows have no standard errors.
    """
    recent = [(row, _new_replies(before, row)) for before, row in pairwise(rows)][-num_iterations:]
    known = [row for row, _ in recent if _number(row, f"{SUMS}N") > 0]
    note = ""
    if known and not _total(known, "kl") <= LARGEST_KL * _total(known, "N"):
        note = TOO_FAR
    elif known and all(f"{SUMS}N" in row for row, _ in recent):
        mean, error = estimate_gain(known)
        if math.isfinite(error):
            half = t_quantile(max(_total(known, "P") - 1, 1)) * error
            return Gain(mean, half, int(_total(known, "N")), REFERENCE)
        note = "" if math.isfinite(mean) else TOO_FAR
    elif found := _weighted_mean(recent, "objective/gain", num_responses_per_prompt):
        mean, error, degrees, num_replies = found
        return Gain(mean, t_quantile(degrees) * error, num_replies, REFERENCE, OLDER)
    first = [(row, _new_replies({"episodes": 0}, row)) for row in rows[:1] if row["iteration"] == 1]
    return _score_change(first, recent, START, note, num_responses_per_prompt)


def quarter_change(rows: Sequence[Row], num_responses_per_prompt: int = 1) -> Gain | None:
    """The score of the newest quarter of the iterations, from the first on, less that of the first quarter.

    None when there are fewer than four, or when the rows have no standard errors.
    """
    counted = [(row, _new_replies(before, row)) for before, row in pairwise([{"episodes": 0}, *rows])]
    size = len(counted) // 4
    first, last = counted[:size], counted[len(counted) - size :]
    return _score_change(first, last, FIRST_QUARTER, "", num_responses_per_prompt)


def _score_change(
    first: Sequence[tuple[Row, int]], last: Sequence[tuple[Row, int]], over: str, note: str, group_size: int
) -> Gain | None:
    end, start = (_weighted_mean(some, "objective/score", group_size) for some in (last, first))
    if not end or not start:
        return None
    half = t_quantile(end[2] + start[2]) * math.hypot(end[1], start[1])
    return Gain(end[0] - start[0], half, end[3], over, note)


def estimate_gain(rows: Sequence[Row], part: str = "") -> tuple[float, float]:
    """The gain by the sums of all rows and its standard error, each NaN if it is not finite; `part`: `<name>/` of one part."""
    num_replies, num_prompts, w, ww, _ = (_total(rows, name) for name in OF_WEIGHTS)
    d, a, dd, aa, da, dw, aw = (_total(rows, part + name) for name in OF_REWARDS)
    if not (num_replies > 0 and w > 0):
        return math.nan, math.nan
    of_reference = a / w
    residuals = (aa - 2 * of_reference * aw + of_reference * of_reference * ww) / w / w  # of A - (sum A / sum W) W
    squares = dd / num_replies / num_replies - 2 * (da - of_reference * dw) / num_replies / w + residuals
    mean = d / num_replies - of_reference
    if not (math.isfinite(mean) and math.isfinite(squares)):
        return math.nan, math.nan
    error = math.sqrt(max(squares, 0.0) * num_prompts / (num_prompts - 1)) if num_prompts > 1 else math.nan
    return mean, error


def _number(row: Row, name: str) -> float:
    """A metric of the row; NaN where it is missing, null, not finite or larger than any run's."""
    value = row.get(name)
    return float(value) if value is not None and abs(value) < MOST else math.nan


def _total(rows: Sequence[Row], name: str) -> float:
    return math.fsum(_number(row, SUMS + name) for row in rows)


def _new_replies(before: Row, row: Row) -> int:
    """The number of replies of the row's iteration; 0 where the rows do not say it."""
    new = _number(row, "episodes") - _number(before, "episodes")
    return int(new) if new > 0 else 0


def _weighted_mean(rows: Sequence[tuple[Row, int]], name: str, group_size: int) -> tuple[float, float, int, int] | None:
    """Mean, standard error, degrees of freedom and number of replies of a metric over rows with these numbers of replies.

    Of those rows that have both the metric and its standard error; None if there is none.
    """
    known = [
        (value, error, replies)
        for row, replies in rows
        if replies and math.isfinite(value := _number(row, name)) and math.isfinite(error := _number(row, f"{name}_se"))
    ]
    if not known:
        return None
    total = sum(replies for _, _, replies in known)
    mean = math.fsum(value * replies for value, _, replies in known) / total
    error = math.hypot(*(error * replies for _, error, replies in known)) / total
    return mean, error, max(sum(replies // group_size - 1 for _, _, replies in known), 1), total
