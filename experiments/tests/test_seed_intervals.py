"""Intervals over training seeds that have the same prompts, by hand."""

import math

import numpy as np
import pytest

from experiments import seed_intervals
from rlhf_dialog.evaluation import intervals
from rlhf_dialog.evaluation.intervals import mean_statistic


def test_a_two_way_table_by_hand():
    """Rows 1 2 6 and 3 6 6: squares 6 of seeds, 16 of prompts, 4 of the rest, so mean squares 6, 8, 2, the variance 12 / 6, and
    Satterthwaite's degrees of freedom 144 / (36 / 1 + 64 / 2 + 4 / 2)."""
    found = seed_intervals.interval(mean_statistic(np.array([[1.0, 2.0, 6.0], [3.0, 6.0, 6.0]])))
    half = intervals.t_quantile(144 / 70) * math.sqrt(2)
    assert found == {"mean": 4.0, "low": pytest.approx(4 - half), "high": pytest.approx(4 + half)}


def test_a_two_way_table_of_three_seeds_by_hand():
    """The mean 10, seeds add -3 0 3, prompts -2 2, and the rest is 1 -1, -2 2, 1 -1: mean squares 36 / 2, 24 / 1 and 12 / 2, the
    variance (18 + 24 - 6) / 6, and 36^2 / (18^2 / 2 + 24^2 / 1 + 6^2 / 2) = 12 / 7 degrees of freedom."""
    assert seed_intervals.two_way(np.array([[6.0, 8.0], [6.0, 14.0], [12.0, 14.0]])) == pytest.approx((6.0, 12 / 7))


def test_a_two_way_table_with_a_hole_by_hand():
    """Rows 1 2 6 and 3 - 9, the mean 21 / 5. What each adds is its distance from that times 6 / 5, and 0 in the hole: -3.84 -2.64
    2.16 and -1.44 0 5.76, of mean squares 12.4416 of seeds, 24.3936 of prompts and .2016 of the rest."""
    found = seed_intervals.interval(mean_statistic(np.array([[1.0, 2.0, 6.0], [3.0, math.nan, 9.0]])))
    total = 12.4416 + 24.3936 - 0.2016
    degrees = total**2 / (12.4416**2 + 24.3936**2 / 2 + 0.2016**2 / 2)
    half = intervals.t_quantile(degrees) * math.sqrt(total / 6)
    assert found == {"mean": 4.2, "low": pytest.approx(4.2 - half), "high": pytest.approx(4.2 + half)}


def test_one_seed_has_the_interval_of_its_dialogues():
    """The quantiles of a binomial of 100 draws with 1/2 are 40 and 60."""
    found = seed_intervals.interval(mean_statistic(np.array([[0.0, 1.0] * 50])))
    assert found == intervals.interval(mean_statistic(np.array([0.0, 1.0] * 50)))
    assert (found["low"], found["high"]) == (pytest.approx(0.4, abs=0.02), pytest.approx(0.6, abs=0.02))


@pytest.mark.parametrize("num_seeds", [4, 12])
def test_a_difference_over_seeds_is_taken_dialogue_by_dialogue(num_seeds):
    before = np.array([[3.0, -20.0, 15.0]])
    found = seed_intervals.difference(
        mean_statistic(before), mean_statistic(np.repeat(before, num_seeds, axis=0) + 2.0)
    )
    assert found == {"mean": pytest.approx(2.0), "low": pytest.approx(2.0), "high": pytest.approx(2.0)}
