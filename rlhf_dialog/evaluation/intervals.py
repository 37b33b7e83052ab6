"""95 % intervals: one function for the tables, the gate, the fidelity of users and the policies.

What varies is the highest level of which there are several: people, else dialogues, and a drawn unit enters with all that belongs
to it (the cluster bootstrap, Davison & Hinkley 1997, section 3.8). Training seeds are drawn in `experiments/seed_intervals.py`.

- **10 or more units are resampled**: the percentile bootstrap (Efron 1979), with quantiles a little further out, so that the
  mean of n normal numbers has an interval as long as Student's (the expanded percentile interval, Hesterberg 2015).
- **2 to 9 units**: a quantile of Student's t times the standard error of the jackknife (Tukey 1958), which for the mean of units
  of equal size is that of the units' means. A bootstrap of so few is too narrow. Numbers other than means (macro-F1, BLEU,
  perplexity) are resampled all the same: theirs are somewhat too narrow.
- **One unit**: the interval is a point.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 1000
FEW = 10  # units: fewer are not resampled
TAIL = 0.025
MANY = 10_000  # degrees of freedom, from which on Student's t is its expansion around the normal distribution
NORMAL = NormalDist()
Array = NDArray[np.float64]
Numbers = NDArray[np.int64]
Interval = dict[str, float]
Replicate = Callable[[Array], Array]  # how often each unit is drawn (R, U) -> the number in each resample (R,)


@dataclass(frozen=True)
class Statistic:
    """A metric of N prompts, or of N blocks of replies, that can be computed from sums over them.

    `rows` (N, k) holds what is summed, and `value` turns sums (..., k) into the metric (...). `units` (N,): the number, from 0,
    of what is drawn as a whole with each row, its dialogue or its person; None: each row is one by itself.
    """

    rows: Array
    value: Callable[[Array], Array]
    units: Numbers | None = None

    @property
    def point(self) -> float:
        return float(self.value(self.rows.reshape(-1, self.rows.shape[-1]).sum(axis=0)))

    def unit_sums(self) -> Array:
        """The sums of each unit (U, k)."""
        if self.units is None:
            return self.rows
        sums = np.zeros((self.units.max(initial=0) + 1, self.rows.shape[-1]))
        np.add.at(sums, self.units, self.rows)
        return sums


@dataclass(frozen=True)
class Bounds:
    """The ends of a 95 % interval, and the standard error that it is made of."""

    low: float
    high: float
    standard_error: float


Part = tuple[float, Statistic]  # what it counts, and the statistic


def ratio(sums: Array) -> Array:
    """The first column divided by the second; NaN where the second is 0. (A mean is a sum divided by a sum of ones.)"""
    top, bottom = sums[..., 0], sums[..., 1]
    return np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom != 0)


def mean_statistic(values: Array, units: Numbers | None = None) -> Statistic:
    """The mean of the finite numbers in `values` (N,)."""
    known = np.isfinite(values)
    return Statistic(np.stack([np.where(known, values, 0.0), known], axis=-1), ratio, units)


def interval(statistic: Statistic, seed: int = 0) -> Interval:
    """`mean` (the point estimate on all rows) and the ends `low` and `high` of its 95 % interval.

    A share stays between 0 and 1. With a single unit and nothing below it, `low` and `high` equal `mean`.
    """
    return within_share(statistic, combine([(1.0, statistic)], seed))


def within_share(statistic: Statistic, found: Interval) -> Interval:
    """The interval, between 0 and 1 for the mean of numbers between 0 and 1."""
    top, bottom = statistic.rows[..., 0], statistic.rows[..., -1]
    if statistic.value is ratio and ((top >= 0) & (top <= bottom)).all():
        return found | {"low": max(found["low"], 0.0), "high": min(found["high"], 1.0)}
    return found


def difference(before: Statistic, after: Statistic, seed: int = 0) -> Interval:
    """The interval of after - before, pair by pair: both draw the same units."""
    return combine([(-1.0, before), (1.0, after)], seed)


def unpaired_difference(before: Statistic, after: Statistic, seed: int = 0) -> Interval:
    """The interval of after - before for two samples of different units, which are drawn independently."""
    sizes = [len(one.unit_sums()) for one in (before, after)]
    if min(sizes) < FEW:
        return _welch(before, after, sizes)
    resamples = _replicate([(1.0, after)])(resample_counts(sizes[1], seed + 1))
    resamples = resamples - _replicate([(1.0, before)])(resample_counts(sizes[0], seed))
    found = quantiles(resamples, min(sizes))
    return {"mean": after.point - before.point, "low": found.low, "high": found.high}


def bootstrap_bounds(point: float, replicate: Replicate, num_units: int, seed: int = 0) -> Bounds:
    """The interval of a number that `replicate` computes for resamples of `num_units` units.

    Resamples without a number (an act may not be drawn at all) are left out; NaN when none has one.
    """
    if num_units >= FEW:
        return quantiles(replicate(resample_counts(num_units, seed)), num_units)
    error, degrees = _jackknife(replicate, num_units)
    half = t_quantile(degrees) * error if error else 0.0
    return Bounds(point - half, point + half, error)


def half_width(num_units: int) -> float:
    """About how many standard errors lie between a number and the end of its interval."""
    widening = math.sqrt(num_units / (num_units - 1)) if num_units >= FEW else 1.0
    return widening * t_quantile(max(num_units - 1, 1))


@lru_cache(maxsize=256)
def t_quantile(degrees: float, tail: float = TAIL) -> float:
    """The quantile of Student's t with `tail` above it, by default 97.5 %; the degrees of freedom need not be whole."""
    if degrees > MANY:  # Abramowitz and Stegun, 26.7.5; the next term is below 1e-11
        z = NORMAL.inv_cdf(1 - tail)
        return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees * degrees)
    from mpmath import betainc  # as slow to import as it is seldom needed

    # bisection for degrees / (degrees + t^2), whose regularised incomplete beta function is the share of both tails
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        is_below = betainc(degrees / 2, 0.5, 0, middle, regularized=True) < 2 * tail
        low, high = (middle, high) if is_below else (low, middle)
    return math.sqrt(degrees * (1 - high) / high)


@lru_cache(maxsize=2)  # dialogues and blocks
def resample_counts(num_units: int, seed: int) -> Array:
    """How often each unit is drawn in each of the resamples: (NUM_RESAMPLES, num_units)."""
    counts = np.random.default_rng(seed).multinomial(num_units, np.full(num_units, 1 / num_units), NUM_RESAMPLES)
    return counts.astype(np.float64)


def combine(parts: Sequence[Part], seed: int = 0) -> Interval:
    """The interval of the sum of the parts, which have the same units."""
    point = sum(weight * part.point for weight, part in parts)
    num_units = len(parts[0][1].unit_sums())
    if num_units >= FEW:
        found = bootstrap_bounds(point, _replicate(parts), num_units, seed)
    elif not are_means(parts):
        found = quantiles(_replicate(parts)(resample_counts(num_units, seed)))
    else:
        known = np.flatnonzero(np.any([part.unit_sums().any(axis=1) for _, part in parts], axis=0))
        of_known = np.eye(num_units)[known]  # the others have no number
        found = bootstrap_bounds(point, lambda counts: _replicate(parts)(counts @ of_known), len(known), seed)
    return {"mean": point, "low": found.low, "high": found.high}


def are_means(parts: Sequence[Part]) -> bool:
    return all(part.value is ratio for _, part in parts)


def _replicate(parts: Sequence[Part]) -> Replicate:
    sums = [(weight, part.value, part.unit_sums()) for weight, part in parts]
    return lambda counts: np.sum([weight * value(counts @ own) for weight, value, own in sums], axis=0)


def quantiles(resamples: Array, num_units: int | None = None) -> Bounds:
    """Those of the percentile bootstrap, expanded for the number of units if it is given."""
    finite = resamples[np.isfinite(resamples)]
    if not len(finite):
        return Bounds(math.nan, math.nan, math.nan)
    tail = TAIL if num_units is None else NORMAL.cdf(-half_width(num_units))
    low, high = np.quantile(finite, [tail, 1 - tail])
    return Bounds(float(low), float(high), float(finite.std(ddof=1)))


def _jackknife(replicate: Replicate, num_units: int) -> tuple[float, int]:
    """The standard error and its degrees of freedom: each unit is left out once. 0 and 1 where that says nothing."""
    left_out = replicate(1.0 - np.eye(num_units)) if num_units > 1 else np.empty(0)
    known = left_out[np.isfinite(left_out)]
    if len(known) < 2:
        return 0.0, 1
    return math.sqrt((len(known) - 1) * known.var()), len(known) - 1


def _welch(before: Statistic, after: Statistic, sizes: Sequence[int]) -> Interval:
    """Two independent samples, one of them small: degrees of freedom of Welch (1947)."""
    point = after.point - before.point
    errors = [_jackknife(_replicate([(1.0, one)]), size) for one, size in zip((before, after), sizes, strict=True)]
    variance = sum(error**2 for error, _ in errors)
    if not variance:
        return {"mean": point, "low": point, "high": point}
    degrees = variance**2 / sum(error**4 / own for error, own in errors)
    half = t_quantile(degrees) * math.sqrt(variance)
    return {"mean": point, "low": point - half, "high": point + half}
