"""95 % intervals over S training seeds that have the same N prompts; one seed has the interval of its dialogues (`intervals`).

The rows of a statistic are (S, N, k) here. The variance of a mean is (MS seeds + MS prompts - MS rest) / (S N) of the two-way
table, with Satterthwaite's degrees of freedom (1946). With 10 seeds, and for numbers other than means, seeds and prompts are both
resampled (Owen 2007); with few seeds the latter is somewhat too narrow.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlhf_dialog.evaluation import intervals
from rlhf_dialog.evaluation.intervals import FEW, NUM_RESAMPLES, Array, Bounds, Interval, Part, Statistic

SEEDS_APART = 1  # the draws of training seeds are not those of dialogues


def interval(statistic: Statistic, seed: int = 0) -> Interval:
    """`mean` (the point estimate on all rows) and the ends `low` and `high` of its 95 % interval; a share stays in 0 to 1."""
    return intervals.within_share(statistic, _combine([(1.0, statistic)], seed))


def difference(before: Statistic, after: Statistic, seed: int = 0) -> Interval:
    """The interval of after - before, pair by pair: the same units, and the same seeds; `before` may have one for all."""
    return _combine([(-1.0, before), (1.0, after)], seed)


def _combine(parts: Sequence[Part], seed: int) -> Interval:
    num_seeds = max(len(part.rows) if part.rows.ndim == 3 else 1 for _, part in parts)
    if num_seeds == 1:
        return intervals.combine([(weight, _only_seed(part)) for weight, part in parts], seed)
    point = sum(weight * part.point for weight, part in parts)
    found = _over_seeds(point, parts, num_seeds, seed)
    return {"mean": point, "low": found.low, "high": found.high}


def _only_seed(part: Statistic) -> Statistic:
    return replace(part, rows=part.rows[0]) if part.rows.ndim == 3 else part


def _over_seeds(point: float, parts: Sequence[Part], num_seeds: int, seed: int) -> Bounds:
    """S seeds on the same U units; a part with one seed counts for all."""
    if num_seeds < FEW and intervals.are_means(parts):
        variance, degrees = two_way(np.sum([weight * _influence(part, num_seeds) for weight, part in parts], axis=0))
        half = intervals.t_quantile(degrees) * math.sqrt(variance) if variance else 0.0
        return Bounds(point - half, point + half, math.sqrt(variance))
    seeds = intervals.resample_counts(num_seeds, seed + SEEDS_APART)
    resamples = np.zeros(NUM_RESAMPLES)
    for weight, part in parts:
        sums = _for_all(part, num_seeds)
        dialogues = intervals.resample_counts(sums.shape[1], seed)
        resamples += weight * part.value(np.einsum("ruk,ru->rk", np.tensordot(seeds, sums, 1), dialogues))
    return intervals.quantiles(resamples, num_seeds if num_seeds >= FEW else None)


def _for_all(part: Statistic, num_seeds: int) -> Array:
    """The sums of each unit and seed (S, U, k)."""
    rows = part.rows if part.rows.ndim == 3 else part.rows[None]
    sums = np.stack([replace(part, rows=own).unit_sums() for own in rows])
    return np.broadcast_to(sums, (num_seeds, *sums.shape[1:]))


def _influence(part: Statistic, num_seeds: int) -> Array:
    """What each unit of each seed adds to a mean, in units of the mean (S, U)."""
    sums = _for_all(part, num_seeds)
    bottom = sums[..., 1]
    added: Array = (sums[..., 0] - part.point * bottom) / bottom.mean()
    return added


def two_way(numbers: Array) -> tuple[float, float]:
    """The variance of the mean of numbers (S, N), rows and columns both drawn, and Satterthwaite's degrees of freedom."""
    num_seeds, num_units = numbers.shape
    mean = numbers.mean()
    of_seeds, of_units = numbers.mean(axis=1) - mean, numbers.mean(axis=0) - mean
    rest = numbers - mean - of_seeds[:, None] - of_units
    degrees = np.array([num_seeds - 1, max(num_units - 1, 1), (num_seeds - 1) * max(num_units - 1, 1)])
    squares = np.array([num_units * (of_seeds**2).sum(), num_seeds * (of_units**2).sum(), (rest**2).sum()]) / degrees
    total, remaining = squares[0] + squares[1] - squares[2], squares[2]
    if total <= remaining:  # seeds and units seem to differ by less than nothing
        return float(remaining / numbers.size), float(degrees[2])
    return float(total / numbers.size), float(total**2 / (squares**2 / degrees).sum())
