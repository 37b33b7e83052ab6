"""Bootstrap intervals of means, ratios and other metrics of sums."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rlhf_dialog.evaluation import intervals
from rlhf_dialog.evaluation.intervals import Statistic, mean_of
from rlhf_dialog.evaluation.measure import perplexity


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


def test_prompts_of_one_dialogue_are_drawn_together():
    """Dialogues of 1 to 9 alike prompts, against a bootstrap of dialogues written another way; prompts alone look surer."""
    rng = np.random.default_rng(5)
    sizes, levels = rng.integers(1, 10, 150), rng.normal(0, 1, 150)
    prompts = [level + rng.normal(0, 0.3, size) for size, level in zip(sizes, levels, strict=True)]
    values, units = np.concatenate(prompts), np.repeat(np.arange(150), sizes)
    shuffled = rng.permutation(len(values))  # the prompts of a dialogue need not be neighbours
    found = intervals.interval(replace(mean_of(values[shuffled]), units=units[shuffled]))
    drawn = [np.concatenate([prompts[i] for i in rng.integers(0, 150, 150)]).mean() for _ in range(3000)]
    spread = np.std(drawn)
    assert found["mean"] == pytest.approx(values.mean())
    assert found["low"] == pytest.approx(np.quantile(drawn, 0.025), abs=0.25 * spread)
    assert found["high"] == pytest.approx(np.quantile(drawn, 0.975), abs=0.25 * spread)
    alone = intervals.interval(mean_of(values))
    assert found["high"] - found["low"] > 1.8 * (alone["high"] - alone["low"])


def test_a_dialogue_without_rows_is_a_unit_with_nothing():
    """The second of three dialogues is empty: it can be drawn, and adds 0."""
    rows = np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]])
    statistic = Statistic(rows, intervals.ratio, units=np.array([2, 0, 2]))
    assert statistic.unit_sums().tolist() == [[2.0, 1.0], [0.0, 0.0], [4.0, 2.0]]
    with_empty = intervals.interval(replace(statistic, value=lambda sums: sums[..., 1]))
    assert with_empty == {"mean": 3.0, "low": 0.0, "high": 6.0}


def test_a_difference_draws_the_same_dialogues_for_both():
    units = np.repeat(np.arange(20), 3)
    before = np.random.default_rng(2).normal(0, 10, 20)[units]
    sides = [replace(mean_of(values), units=units) for values in (before, before + 0.5)]
    assert intervals.difference(*sides) == {key: pytest.approx(0.5) for key in ("mean", "low", "high")}


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


def test_an_unpaired_difference_draws_both_samples_by_themselves():
    """Equal samples: the paired difference is 0 in every resample, the other one has the variance of both together."""
    values = np.random.default_rng(0).normal(size=400)
    one = intervals.mean_of(values)
    assert intervals.difference(one, one) == {"mean": 0, "low": 0, "high": 0}
    found = intervals.unpaired_difference(one, one)
    expected = 1.96 * np.std(values) * (2 / 400) ** 0.5
    assert found["mean"] == 0
    assert found["high"] == pytest.approx(expected, rel=0.15)
    assert found["low"] == pytest.approx(-expected, rel=0.15)
