"""Bootstrap intervals of means, ratios and other metrics of sums."""

import math

import numpy as np
import pytest

from rlhf_dialog.evaluation import intervals
from rlhf_dialog.evaluation.intervals import Statistic, mean_of
from rlhf_dialog.evaluation.measure import Measured, differences, perplexity, with_intervals


def test_the_interval_is_that_of_the_mean():
    """Against mean +- 1.96 standard errors, and against a bootstrap written another way."""
    values = np.random.default_rng(3).gamma(2.0, 1.5, size=400)
    found = intervals.interval(mean_of(values))
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert found["mean"] == pytest.approx(values.sum() / 400)
    assert found["low"] == pytest.approx(values.mean() - 1.96 * error, abs=0.25 * error)
    assert found["high"] == pytest.approx(values.mean() + 1.96 * error, abs=0.25 * error)
    rng = np.random.default_rng(77)
    means = sorted(rng.choice(values, len(values)).mean() for _ in range(3000))
    assert found["low"] == pytest.approx(means[int(0.025 * 3000)], abs=0.25 * error)
    assert found["high"] == pytest.approx(means[int(0.975 * 3000)], abs=0.25 * error)


def test_a_ratio_is_resampled_as_a_whole():
    """Nats and tokens of 300 prompts: the interval of exp(sum / sum), against a bootstrap written another way."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(3, 30, 300).astype(float)
    rows = np.stack([tokens * rng.gamma(4.0, 1.0, 300), tokens], axis=1)
    found = intervals.interval(Statistic(rows, perplexity))
    assert found["mean"] == pytest.approx(math.exp(rows[:, 0].sum() / rows[:, 1].sum()))
    drawn = []
    for _ in range(3000):
        picked = rows[rng.integers(0, 300, 300)]
        drawn.append(math.exp(picked[:, 0].sum() / picked[:, 1].sum()))
    spread = np.std(drawn)
    assert found["low"] == pytest.approx(np.quantile(drawn, 0.025), abs=0.25 * spread)
    assert found["high"] == pytest.approx(np.quantile(drawn, 0.975), abs=0.25 * spread)


def test_an_interval_of_equal_or_single_values_is_a_point():
    for values in (np.full(20, 0.25), np.array([0.25])):
        assert intervals.interval(mean_of(values)) == {"mean": 0.25, "low": 0.25, "high": 0.25}


def test_the_interval_depends_on_the_seed_alone():
    values = mean_of(np.arange(50.0))
    assert intervals.interval(values, 1) == intervals.interval(values, 1)
    assert intervals.interval(values, 1) != intervals.interval(values, 2)


def test_a_mean_leaves_out_what_has_no_number():
    found = intervals.interval(mean_of(np.array([1.0, np.nan, 4.0])))
    assert found["mean"] == 2.5
    assert found["low"] >= 1
    assert math.isnan(mean_of(np.full(3, np.nan)).point)


def test_a_ratio_of_nothing_is_no_number():
    nothing = intervals.interval(Statistic(np.zeros((3, 2)), intervals.ratio))
    assert all(math.isnan(value) for value in nothing.values())


def test_resamples_without_a_number_say_nothing():
    """One of eight prompts wants the act, and it was found: 1 whenever that prompt is drawn at all."""
    rows = np.zeros((8, 2))
    rows[3] = 1
    assert intervals.interval(Statistic(rows, intervals.ratio)) == {"mean": 1.0, "low": 1.0, "high": 1.0}


def test_paired_differences_are_narrower_than_two_independent_samples():
    """Prompts differ by far more than systems do; pairing takes that out."""
    rng = np.random.default_rng(0)
    prompts, noise = rng.normal(0, 10, 300), rng.normal(0, 0.1, 300)
    before = Measured({"score": prompts}, {"distinct_1": np.array([0.5, 0.7])})
    after = Measured({"score": prompts + 0.2 + noise}, {"distinct_1": np.array([0.6, 0.8])})
    found = differences(before, after)
    assert found["score"]["mean"] == pytest.approx(0.2 + noise.mean())
    assert found["score"]["low"] > 0.15
    assert found["score"]["high"] - found["score"]["low"] < 0.05
    alone = with_intervals(after)["score"]
    assert alone["high"] - alone["low"] > 1
    assert found["distinct_1"] == {key: pytest.approx(0.1) for key in ("mean", "low", "high")}
