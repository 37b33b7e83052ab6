"""Intervals over seeds and dialogues, beside what can be counted by hand."""

import numpy as np
import pytest

from rlhf_dialog.task_oriented.evaluation.seed_intervals import difference_over_seeds, interval_over_seeds


def test_two_seeds_with_one_dialogue():
    """Drawn are both from the first seed, one of each, or both from the second: 0, 0.5 or 1, with 1/4, 1/2, 1/4."""
    assert interval_over_seeds(np.array([[0.0], [1.0]])) == {"mean": 0.5, "low": 0.0, "high": 1.0}


def test_one_seed_has_the_interval_of_its_dialogues():
    """The quantiles of a binomial of 100 draws with 1/2 are 40 and 60."""
    found = interval_over_seeds(np.array([[0.0, 1.0] * 50]))
    assert found["mean"] == 0.5
    assert (found["low"], found["high"]) == (pytest.approx(0.4, abs=0.015), pytest.approx(0.6, abs=0.015))


def test_seeds_and_dialogues_both_vary():
    """20 seeds and 50 dialogues add 0 or 1 each: the variance of the mean is 1/4/20 + 1/4/50, so the interval is +-0.259."""
    numbers = np.array([[0.0], [1.0]] * 10) + np.array([[0.0, 1.0] * 25])
    found = interval_over_seeds(numbers)
    assert found["mean"] == 1.0
    assert (found["low"], found["high"]) == (pytest.approx(0.741, abs=0.03), pytest.approx(1.259, abs=0.03))


def test_a_difference_is_taken_dialogue_by_dialogue():
    before = np.array([[3.0, -20.0, 15.0]])
    found = difference_over_seeds(before, np.repeat(before, 4, axis=0) + 2.0)
    assert found == {"mean": pytest.approx(2.0), "low": pytest.approx(2.0), "high": pytest.approx(2.0)}


def test_what_no_seed_and_no_dialogue_changes_has_no_width():
    assert interval_over_seeds(np.full((3, 7), 0.25)) == {"mean": 0.25, "low": 0.25, "high": 0.25}


def test_as_many_seeds_as_dialogues_are_drawn_independently_of_each_other():
    """Drawn together, a seed would meet its own dialogue more often than 1 time in 20, and the interval would lie above."""
    found = interval_over_seeds(np.eye(20))
    assert found["low"] < found["mean"] < found["high"]
    assert found["mean"] == pytest.approx(0.05)
