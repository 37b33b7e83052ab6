"""How often 95 % intervals hold the truth, counted over simulated data sets whose truth is known.

What 95 % claims is asked of it: between 93 and 97 % of 1,000 data sets, with three binomial errors of play where the number of
data sets decides. The few that are known to fall short, such as skewed numbers, say by how much in their tests.
"""

import math
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest

from experiments import gain_coverage, seed_intervals
from rlhf_dialog.evaluation import intervals
from rlhf_dialog.evaluation.intervals import Statistic, mean_statistic
from rlhf_dialog.feedback.learning.gate import compare, smallest_gain
from rlhf_dialog.feedback.store.examples import HeldOut, RatedAnswer

pytestmark = pytest.mark.slow

NORMAL = NormalDist()
DATA_SETS = 1000
NIGHTS = 400
PLAY = 3 * math.sqrt(0.95 * 0.05 / DATA_SETS)


def share(simulate, count=DATA_SETS, seed=0):
    """How often `simulate(rng)` is true."""
    rng = np.random.default_rng(seed)
    return sum(bool(simulate(rng)) for _ in range(count)) / count


def close(found, expected, count=DATA_SETS):
    """Within three and a half binomial errors."""
    return abs(found - expected) <= 3.5 * math.sqrt(expected * (1 - expected) / count)


def claimed(found):
    """As often as 95 % claims: from 93 to 97 %, and what 1,000 data sets leave open."""
    return 0.93 - PLAY <= found <= 0.97 + PLAY


def holds(interval, truth):
    return interval["low"] <= truth <= interval["high"]


# --- one system, and two, on prompts and dialogues


def of_mean(draw, truth):
    """Whether the interval of the mean of what is drawn holds the truth."""
    return lambda rng: holds(intervals.interval(mean_statistic(draw(rng))), truth)


def dialogues_of(rng, count, prompts, between):
    """Numbers of dialogues with as many prompts each, which share what is between dialogues, and their units."""
    units = np.repeat(np.arange(count), prompts)
    return rng.normal(0, between, count)[units] + rng.normal(0, 1, len(units)), units


def alike_prompts(rng):
    """The units are the 30 dialogues, however many prompts they have."""
    values, units = dialogues_of(rng, 30, 5, between=2.0)
    return holds(intervals.interval(Statistic(mean_statistic(values).rows, intervals.ratio, units)), 0.0)


def ratio_of_sums(rng):
    """Words in all divided by sentences in all, where longer dialogues have more words a sentence: truth E[xy] / E[x]."""
    sentences = rng.integers(1, 6, 60).astype(float)  # mean 3, mean of squares 11
    words = sentences * (4 + sentences + rng.normal(0, 1, 60))
    return holds(intervals.interval(Statistic(np.stack([words, sentences], axis=1), intervals.ratio)), 4 + 11 / 3)


def paired_difference(rng):
    """What both systems share drops out: the truth is .4 and the units' differences are normal."""
    shared = rng.normal(0, 50, 30)
    before, after = (mean_statistic(shared + rng.normal(shift, 1, 30)) for shift in (0.0, 0.4))
    found = intervals.difference(before, after)
    return holds(found, 0.4) and found["high"] - found["low"] < 5


def unpaired_difference(rng):
    """Two samples of 50 with equal variance cover as one of a t of 98 degrees of freedom: 94.2 %."""
    before, after = (mean_statistic(rng.normal(shift, 1, 50)) for shift in (0.0, 0.4))
    return holds(intervals.unpaired_difference(before, after), 0.4)


@pytest.mark.parametrize(
    ("simulate", "expected"),
    [
        *((of_mean(lambda rng, count=count: rng.normal(2.0, 3.0, count), 2.0), None) for count in (10, 30, 100)),
        (of_mean(lambda rng: rng.exponential(1.0, 40), 1.0), 0.918),  # the interval is not shifted far enough
        (of_mean(lambda rng: 1.0 * (rng.random(50) < 0.8), 0.8), 0.944),
        (alike_prompts, None),
        (ratio_of_sums, 0.945),
        (paired_difference, None),
        (unpaired_difference, 0.942),
    ],
)
def test_one_system_and_two(simulate, expected):
    """`expected`: the share that is known; None: what 95 % claims."""
    found = share(simulate)
    assert claimed(found) if expected is None else close(found, expected), found


# --- training seeds


def over_seeds(numbers):
    return seed_intervals.interval(mean_statistic(numbers))


def seeds_and_dialogues(rng, seeds, of_seeds, of_dialogues=15.0, rest=15.0, dialogues=250):
    """Numbers (S, N) that are a seed's, a dialogue's and a noise of their own, each normal, in points; a mean varies as that of
    1,000 dialogues with twice the deviations."""
    own = rng.normal(0, of_seeds, (seeds, 1)) + rng.normal(0, of_dialogues, (1, dialogues))
    return own + rng.normal(0, rest, (seeds, dialogues))


@pytest.mark.parametrize("of_seeds", [0.5, 2.0])
@pytest.mark.parametrize("seeds", [3, 5])
def test_seeds_on_the_same_prompts(seeds, of_seeds):
    """A bootstrap of 3 and 5 covers .88 and less; Student's t on the seeds' means alone .86 and .73, as it holds the prompts
    for fixed."""
    found = share(lambda rng: holds(over_seeds(seeds_and_dialogues(rng, seeds, of_seeds)), 0.0))
    assert claimed(found), found


def test_ten_seeds_err_on_the_wide_side():
    """Both are resampled, which counts the rest twice (Owen 2007): 98 %."""
    found = share(lambda rng: holds(over_seeds(seeds_and_dialogues(rng, 10, 2.0)), 0.0), count=400)
    assert 0.93 <= found <= 1.0, found


def test_a_difference_over_seeds():
    """The policy before has one row; the dialogues are shared, so that the 5 seeds alone are left."""

    def simulate(rng):
        before = rng.normal(0, 30, (1, 50))
        after = before + 0.7 + rng.normal(0, 1, (5, 1)) + rng.normal(0, 0.1, (5, 50))
        return holds(seed_intervals.difference(mean_statistic(before), mean_statistic(after)), 0.7)

    found = share(simulate)
    assert claimed(found), found


# --- people


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("people", [5, 8, 20])
def test_people_with_ten_events_each(people, spread):
    """The units are the people; drawn by events, a spread of 1 would be covered in 50 to 70 %."""

    def simulate(rng):
        values, owners = dialogues_of(rng, people, 10, between=spread)
        return holds(intervals.interval(mean_statistic(values, owners)), 0.0)

    found = share(simulate)
    assert claimed(found), found


# --- the gate


def night(rng, gain, dialogues=60, answers=2, champion=0.6, together=0.5):
    """A comparison on thumbs whose concordances are `champion` and `champion + gain`: of normal scores that are d deviations
    apart it is Phi(d / sqrt(2)). The answers of a dialogue share half the variance of what the scores say."""
    count = dialogues * answers
    units = np.repeat(np.arange(dialogues), answers)
    liked = np.repeat(rng.random(dialogues) < 0.5, answers)
    noise = math.sqrt(0.5) * (rng.standard_normal((2, dialogues))[:, units] + rng.standard_normal((2, count)))
    noise[1] = together * noise[0] + math.sqrt(1 - together**2) * noise[1]
    apart = [math.sqrt(2) * NORMAL.inv_cdf(one) for one in (champion, champion + gain)]
    scores = noise + np.outer(apart, liked)
    rows = [RatedAnswer((), "", bool(liked[i]), "thumb", "p", f"d{units[i]}", i) for i in range(count)]
    held_out = HeldOut(rows, [], {}, dict.fromkeys(range(count), 1.0))
    return compare(held_out, *({str(i): x for i, x in enumerate(row)} for row in scores.tolist()))


@cache
def nights(gain):
    rng = np.random.default_rng(0)
    return [night(rng, gain) for _ in range(NIGHTS)]


@pytest.mark.parametrize(("gain", "expected"), [(0.0, 0.965), (0.1, 0.975)])
def test_the_lower_bound_of_the_gate(gain, expected):
    """97.5 % of the lower bounds should lie below the true gain."""
    found = sum(one.low <= gain for one in nights(gain)) / NIGHTS
    assert close(found, expected, NIGHTS), found


def test_the_standard_error_of_the_gate():
    """As large as the spread of the differences over the nights; the spread of N nights is known to 1 / sqrt(2 N) of itself."""
    differences = [one.difference for one in nights(0.1)]
    spread = np.std(differences, ddof=1)
    error = np.mean([one.standard_error for one in nights(0.1)])
    assert error == pytest.approx(spread, rel=3.5 / math.sqrt(2 * NIGHTS)), (error, spread)
    assert np.mean(differences) == pytest.approx(0.1, abs=3.5 * spread / math.sqrt(NIGHTS))


@pytest.mark.parametrize(("gain", "expected"), [(-0.1, 0.01), (0.0, 0.052), (0.1, 0.488)])
def test_how_often_a_night_is_promoted(gain, expected):
    """A candidate that is worse, one that is as good, and one that is better, each by 10 points.

    By the normal distribution, with a gain of 1.6 standard errors: 1 - Phi(1.96 - 1/3 - gain in standard errors).
    """
    found = sum(one.is_enough for one in nights(gain)) / NIGHTS
    assert close(found, expected, NIGHTS), found


def test_the_gain_that_is_seen():
    """`smallest_gain` of the error is promoted on four nights of five."""
    gain = smallest_gain(float(np.mean([one.standard_error for one in nights(0.1)])), 60)
    found = sum(one.is_enough for one in nights(gain)) / NIGHTS
    assert close(found, 0.8, NIGHTS), found


# --- the gain that a run shows


@pytest.mark.parametrize("estimator", list(gain_coverage.GROUP_SIZES))
@pytest.mark.parametrize(("num_replies", "num_runs"), [(64, 1000), (256, 300)])
@pytest.mark.parametrize("distance", gain_coverage.DISTANCES[::2])
def test_the_gain_of_ten_iterations(distance, num_replies, num_runs, estimator):
    """A bias of at most 2 %. The interval is too narrow far from the reference, where few replies have large weights."""
    size = gain_coverage.GROUP_SIZES[estimator]
    found = gain_coverage.measure("share of heads", distance, num_replies, size, num_runs)
    least = 0.82 if distance == 1 else 0.85
    assert max(abs(found.bias), abs(found.bias_shown)) <= 0.02, found
    assert min(found.coverage, found.coverage_shown) >= least, found
    assert found.shown == 1 if distance < 1 else 0.3 < found.shown < 0.7, found
