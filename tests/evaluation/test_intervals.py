"""Intervals of means, ratios and other metrics of sums, over dialogues and people."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from rlhf_dialog.evaluation import intervals
from rlhf_dialog.evaluation.intervals import Statistic, mean_statistic
from rlhf_dialog.evaluation.measure import perplexity


def agrees(found, drawn):
    """Whether the ends are those of a bootstrap that was written another way."""
    ends = [pytest.approx(np.quantile(drawn, end), abs=0.25 * np.std(drawn)) for end in (0.025, 0.975)]
    return [found["low"], found["high"]] == ends


def test_the_interval_is_that_of_the_mean():
    """Against mean +- 1.96 standard errors, and against a bootstrap written another way."""
    values = np.random.default_rng(3).gamma(2.0, 1.5, size=400)
    found = intervals.interval(mean_statistic(values))
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert found["mean"] == pytest.approx(values.sum() / 400)
    assert found["low"] == pytest.approx(values.mean() - 1.96 * error, abs=0.25 * error)
    assert found["high"] == pytest.approx(values.mean() + 1.96 * error, abs=0.25 * error)
    rng = np.random.default_rng(77)
    assert agrees(found, [rng.choice(values, len(values)).mean() for _ in range(3000)])


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
    assert agrees(found, drawn)


def test_prompts_of_one_dialogue_are_drawn_together():
    """Dialogues of 1 to 9 alike prompts, against a bootstrap of dialogues written another way; prompts alone look surer."""
    rng = np.random.default_rng(5)
    sizes, levels = rng.integers(1, 10, 150), rng.normal(0, 1, 150)
    prompts = [level + rng.normal(0, 0.3, size) for size, level in zip(sizes, levels, strict=True)]
    values, units = np.concatenate(prompts), np.repeat(np.arange(150), sizes)
    shuffled = rng.permutation(len(values))  # the prompts of a dialogue need not be neighbours
    found = intervals.interval(replace(mean_statistic(values[shuffled]), units=units[shuffled]))
    drawn = [np.concatenate([prompts[i] for i in rng.integers(0, 150, 150)]).mean() for _ in range(3000)]
    assert found["mean"] == pytest.approx(values.mean())
    assert agrees(found, drawn)
    alone = intervals.interval(mean_statistic(values))
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
    sides = [replace(mean_statistic(values), units=units) for values in (before, before + 0.5)]
    assert intervals.difference(*sides) == {key: pytest.approx(0.5) for key in ("mean", "low", "high")}


def test_an_interval_of_equal_or_single_values_is_a_point_and_a_share_stays_between_0_and_1():
    for values in (np.full(20, 0.25), np.array([0.25])):
        assert intervals.interval(mean_statistic(values)) == {"mean": 0.25, "low": 0.25, "high": 0.25}
    found = intervals.interval(mean_statistic(np.array([1.0, 1.0, 0.0])))
    assert (found["low"], found["high"]) == (0.0, 1.0)


def test_a_mean_leaves_out_what_has_no_number():
    found = intervals.interval(mean_statistic(np.array([1.0, np.nan, 4.0])))
    assert found["mean"] == 2.5
    assert found["high"] - 2.5 == pytest.approx(12.7062 * 1.5, abs=1e-3)  # Student's quantile of 1 degree of freedom
    assert math.isnan(mean_statistic(np.full(3, np.nan)).point)


def test_resamples_without_a_number_say_nothing():
    """One of eight prompts wants the act, and it was found: 1 whenever that prompt is drawn at all."""
    rows = np.zeros((8, 2))
    rows[3] = 1
    assert intervals.interval(Statistic(rows, intervals.ratio)) == {"mean": 1.0, "low": 1.0, "high": 1.0}


def test_an_unpaired_difference_draws_both_samples_by_themselves():
    """Equal samples: the paired difference is 0 in every resample, the other one has the variance of both together."""
    values = np.random.default_rng(0).normal(size=400)
    one = intervals.mean_statistic(values)
    assert intervals.difference(one, one) == {"mean": 0, "low": 0, "high": 0}
    found = intervals.unpaired_difference(one, one)
    expected = 1.96 * np.std(values) * (2 / 400) ** 0.5
    assert found["mean"] == 0
    assert found["high"] == pytest.approx(expected, rel=0.15)
    assert found["low"] == pytest.approx(-expected, rel=0.15)


def test_the_half_width_is_that_of_students_t_and_wider_where_units_are_resampled():
    """Quantiles from a printed table; the bootstrap's variance divides by n, not n - 1."""
    table = {1: 12.7062, 2: 4.3027, 4: 2.7764, 9: 2.2622, 30: 2.0423, 1000: 1.9623}
    assert {degrees: intervals.t_quantile(degrees) for degrees in table} == pytest.approx(table, abs=1e-4)
    widths = {9: 2.3060, 10: 2.2622 * (10 / 9) ** 0.5, 16: 2.1314 * (16 / 15) ** 0.5}
    assert {num_units: intervals.half_width(num_units) for num_units in widths} == pytest.approx(widths, abs=2e-4)


def test_students_t_of_very_many_is_nearly_the_normal_distribution():
    """Where a numerical inversion does not converge any more; 1.959964 of the normal one, 1.961201 with 2,000 degrees."""
    assert intervals.t_quantile(2e4) == pytest.approx(1.9600823, abs=1e-6)
    for degrees in (1e5, 1e6, 1e12, 1e300):
        assert intervals.t_quantile(degrees) == pytest.approx(1.959963985 + 2.3722712 / degrees, abs=1e-8)
    below, above = (intervals.t_quantile(intervals.MANY + one) for one in (0, 1))
    assert above == pytest.approx(below, abs=1e-7)


@pytest.mark.parametrize("sizes", [(10, 40), (40, 10)])
def test_an_unpaired_difference_is_expanded_for_the_smaller_sample(sizes):
    """The numbers of one sample are all alike, so the interval is that of the other; t of 9 degrees of freedom is 2.2622."""
    varied = np.random.default_rng(0).normal(size=10)
    samples = [varied if size == 10 else np.zeros(size) for size in sizes]
    found = intervals.unpaired_difference(*map(mean_statistic, samples))
    counts = np.random.default_rng(1 if sizes[1] == 10 else 0).multinomial(10, [0.1] * 10, 1000)
    tail = NormalDist().cdf(-2.2622 * math.sqrt(10 / 9))
    low, high = np.quantile(counts @ varied / 10 * (1 if sizes[1] == 10 else -1), [tail, 1 - tail])
    assert (found["low"], found["high"]) == pytest.approx((low, high), abs=1e-4)


def test_few_people_have_the_t_interval_of_their_means():
    """Five people with two dialogues each: the means are 0, 1, 2, 3, 4, so 2 +- 2.7764 sqrt(2.5 / 5)."""
    values, people = np.repeat(np.arange(5.0), 2) + np.tile([-0.5, 0.5], 5), np.repeat(np.arange(5), 2)
    found = intervals.interval(mean_statistic(values, people))
    half = 2.7764 * math.sqrt(2.5 / 5)
    assert found == {"mean": 2.0, "low": pytest.approx(2 - half, abs=1e-4), "high": pytest.approx(2 + half, abs=1e-4)}


def test_ten_units_have_an_interval_as_long_as_students():
    """Mean of ten normal numbers: +- 2.2622 s / sqrt(10), where the plain bootstrap has 1.96 s sqrt(9 / 10) / sqrt(10)."""
    values = np.random.default_rng(4).normal(size=10)
    found = intervals.interval(mean_statistic(values))
    assert (found["high"] - found["low"]) / 2 == pytest.approx(2.2622 * values.std(ddof=1) / math.sqrt(10), rel=0.15)


def test_small_samples_of_different_units_have_welchs_interval():
    """Welch (1947): variances 1 / 3 and 5 / 3 over 3 and 4, so the error is .7265 and 4.3245 degrees of freedom."""
    before = mean_statistic(np.array([1.0, 2.0, 3.0]) / math.sqrt(3))
    after = mean_statistic(np.array([4.0, 5.0, 6.0, 7.0]))
    found = intervals.unpaired_difference(before, after)
    error = math.sqrt(1 / 9 + 5 / 12)
    degrees = (1 / 9 + 5 / 12) ** 2 / ((1 / 9) ** 2 / 2 + (5 / 12) ** 2 / 3)
    assert found["high"] - found["mean"] == pytest.approx(intervals.t_quantile(degrees) * error)
