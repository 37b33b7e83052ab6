"""Counts and F1 of a classifier's classes against the acts that were wanted."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NUM_ACTS = 4
Array = NDArray[np.float64]


def act_counts(predicted: Sequence[int], acts: Sequence[int]) -> Array:
    """Three numbers for each reply and act, (N, 12): whether it was wanted and found, found, and wanted.

    `predicted` are classes 0 to 3, `acts` DailyDialog's numbers 1 to 4 (class = act - 1).
    """
    found = np.eye(NUM_ACTS)[np.asarray(predicted)]
    wanted = np.eye(NUM_ACTS)[np.asarray(acts) - 1]
    return np.concatenate([found * wanted, found, wanted], axis=1)


def macro_f1(sums: Array) -> Array:
    """The mean of the F1 of those acts that are wanted or found at all, of summed `act_counts` (..., 12).

    An act that is only wanted, or only found, counts as 0. This is the default of scikit-learn's `f1_score` with
    `average="macro"`: labels that occur in truth or prediction, `zero_division` 0.
    """
    both, found, wanted = np.split(sums, 3, axis=-1)
    occurs = (found + wanted) > 0
    f1 = np.divide(2 * both, found + wanted, out=np.zeros_like(both), where=occurs)
    return f1.sum(axis=-1) / np.maximum(occurs.sum(axis=-1), 1)
