"""95 % intervals of metrics: the percentile bootstrap (Efron 1979), paired where two systems are compared.

What is resampled are dialogues (the cluster bootstrap, Davison & Hinkley 1997, section 3.8): all prompts of a drawn dialogue
enter with it, because they are not independent. An interval leaves out what else varies: the seed of the training.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 1000
Array = NDArray[np.float64]
Numbers = NDArray[np.int64]
Interval = dict[str, float]


@dataclass(frozen=True)
class Statistic:
    """A metric of N prompts, or of N blocks of replies, that can be computed from sums over them.

    `rows` (N, k) holds what is summed; `value` turns sums (..., k) into the metric (...). `units` (N,): the number, from 0,
    of the dialogue that each row belongs to, which is drawn as a whole; None: each row is drawn by itself.
    """

    rows: Array
    value: Callable[[Array], Array]
    units: Numbers | None = None

    @property
    def point(self) -> float:
        return float(self.value(self.rows.sum(axis=0)))

    def unit_sums(self) -> Array:
        """The sums of each unit (U, k)."""
        if self.units is None:
            return self.rows
        sums = np.zeros((self.units.max() + 1, self.rows.shape[1]))
        np.add.at(sums, self.units, self.rows)
        return sums


def ratio(sums: Array) -> Array:
    """The first column divided by the second; NaN where the second is 0. (A mean is a sum divided by a sum of ones.)"""
    top, bottom = sums[..., 0], sums[..., 1]
    return np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom != 0)


def mean_of(values: Array) -> Statistic:
    """The mean of the finite numbers in `values` (N,)."""
    known = np.isfinite(values)
    return Statistic(np.stack([np.where(known, values, 0.0), known], axis=-1), ratio)


def interval(statistic: Statistic, seed: int = 0) -> Interval:
    """`mean` (the point estimate on all rows) and the quantiles `low` (2.5 %) and `high` (97.5 %) of its resamples.

    With a single unit, `low` and `high` equal `mean`.
    """
    return _interval(statistic.point, _resampled(statistic, seed))


def difference(before: Statistic, after: Statistic, seed: int = 0) -> Interval:
    """The interval of after - before; every resample uses the same units in both."""
    return _interval(after.point - before.point, _resampled(after, seed) - _resampled(before, seed))


def unpaired_difference(before: Statistic, after: Statistic, seed: int = 0) -> Interval:
    """The interval of after - before for two samples of different units, which are drawn independently."""
    return _interval(after.point - before.point, _resampled(after, seed + 1) - _resampled(before, seed))


def _interval(point: float, resamples: Array) -> Interval:
    """The point and the quantiles of the finite resamples (an act may not be drawn at all); NaN when there are none."""
    known = resamples[np.isfinite(resamples)]
    low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (np.nan, np.nan)
    return {"mean": point, "low": float(low), "high": float(high)}


def _resampled(statistic: Statistic, seed: int) -> Array:
    """The metric of each resample; the same seed and number of units draw the same units."""
    sums = statistic.unit_sums()
    return statistic.value(resample_counts(len(sums), seed) @ sums)


@lru_cache(maxsize=2)  # dialogues and blocks
def resample_counts(num_units: int, seed: int) -> Array:
    """How often each unit is drawn in each of the resamples: (NUM_RESAMPLES, num_units)."""
    counts = np.random.default_rng(seed).multinomial(num_units, np.full(num_units, 1 / num_units), NUM_RESAMPLES)
    return counts.astype(np.float64)
