"""95 % intervals of means over training seeds and test dialogues: S seeds, N dialogues, the same ones for each seed.

Seeds and dialogues are drawn with replacement, independently of each other: a drawn dialogue enters with its number of every
drawn seed (the bootstrap of two crossed factors, Owen 2007, "The pigeonhole bootstrap"). The interval says what another training
seed and other users would give. With few seeds it is somewhat too narrow, as each bootstrap; with one seed it is that of the
dialogues alone.
"""

import numpy as np

from rlhf_dialog.evaluation.intervals import Array, Interval, resample_counts

SEEDS_APART = 1  # the draws of seeds are not those of dialogues


def interval_over_seeds(numbers: Array) -> Interval:
    """`mean` of the numbers (S, N), and the quantiles `low` (2.5 %) and `high` (97.5 %) of its resamples."""
    num_seeds, num_dialogues = numbers.shape
    seeds, dialogues = resample_counts(num_seeds, SEEDS_APART), resample_counts(num_dialogues, 0)
    means = ((seeds @ numbers) * dialogues).sum(axis=1) / (num_seeds * num_dialogues)
    low, high = np.quantile(means, [0.025, 0.975])
    return {"mean": float(numbers.mean()), "low": float(low), "high": float(high)}


def difference_over_seeds(before: Array, after: Array) -> Interval:
    """The interval of after - before, (S, N) each, pair by pair: the same seed and the same dialogue.

    Where the policy before does not depend on the seed, it has one row, (1, N).
    """
    return interval_over_seeds(after - before)
