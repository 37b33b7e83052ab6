"""The gain of the newest iterations; the expected numbers are worked out by hand."""

import math

import pytest

from rlhf_dialog.evaluation.gain import recent_gain

T_18, T_27 = 2.1009, 2.0518  # Student's t, 97.5 %, with 18 and 27 degrees of freedom; from a table


def rows_of(gains, errors=None, replies=10, scores=None):
    """Lines of metrics with as many replies each, the first of them before the first step."""
    errors, scores = errors or [0.1] * len(gains), scores or [0.5] * len(gains)
    return [
        {
            "iteration": i + 1,
            "episodes": replies * (i + 1),
            "objective/gain": gain,
            "objective/gain_se": None if gain is None else error,
            "objective/score": score,
            "objective/score_se": 0.2,
        }
        for i, (gain, error, score) in enumerate(zip(gains, errors, scores, strict=True))
    ]


def test_two_iterations_without_the_first():
    gain = recent_gain(rows_of([9.0, 0.1, 0.3], errors=[9.0, 0.3, 0.4]))
    assert (gain.mean, gain.num_replies, gain.over) == (pytest.approx(0.2), 20, "the reference")
    assert gain.half == pytest.approx(T_18 * 0.25, rel=1e-4)  # sqrt(.3^2 + .4^2) / 2
    assert (gain.low, gain.high) == (pytest.approx(0.2 - gain.half), pytest.approx(0.2 + gain.half))


def test_every_reply_of_the_last_ten_iterations_counts_alike():
    rows = rows_of([0.0, 0.1, 0.4])
    rows[2]["episodes"] = 50  # 10 replies, then 30
    assert recent_gain(rows).mean == pytest.approx((0.1 + 3 * 0.4) / 4)
    gain = recent_gain(rows_of([0.0, *[5.0] * 3, *[0.2] * 10]))
    assert (gain.mean, gain.num_replies) == (pytest.approx(0.2), 100)


def test_prompts_with_several_replies_count_once():
    one, two = (recent_gain(rows_of([0.0] * 11, replies=size * 10), size) for size in (1, 2))
    assert one.half == pytest.approx(two.half)


@pytest.mark.parametrize("unknown", [None, math.nan])
def test_iterations_without_a_known_gain_are_left_out(unknown):
    gain = recent_gain(rows_of([0.0, 0.1, unknown, 0.3, unknown]))
    assert (gain.mean, gain.num_replies, gain.over) == (pytest.approx(0.2), 20, "the reference")
    assert gain.half == pytest.approx(T_18 * math.sqrt(2) * 0.1 / 2, rel=1e-4)


@pytest.mark.parametrize("unknown", [None, math.nan])
def test_where_no_gain_is_known_the_score_is_compared_with_the_first_iteration(unknown):
    gain = recent_gain(rows_of([0.0, unknown, unknown], scores=[0.5, 0.7, 0.8]))
    assert (gain.mean, gain.over, gain.num_replies) == (pytest.approx(0.25), "iteration 1", 20)
    error = math.hypot(0.2, 0.2 / math.sqrt(2))
    assert gain.half == pytest.approx(T_27 * error, rel=1e-4)


@pytest.mark.parametrize(
    "rows", [[], rows_of([0.0]), [row | {"objective/score_se": None} for row in rows_of([None] * 3)]]
)
def test_too_little_is_no_gain(rows):
    assert recent_gain(rows) is None


def test_how_many_more_replies_would_show_it():
    gain = recent_gain(rows_of([0.0] + [0.02] * 10, errors=[0.1] * 11, replies=100))
    needed = 1000 * (gain.half / 0.02) ** 2
    assert gain.missing_replies == pytest.approx(needed - 1000, abs=1)
    assert recent_gain(rows_of([0.0, -0.1])).missing_replies is None
    assert recent_gain(rows_of([0.0, 0.9], errors=[0.1, 0.01])).missing_replies == 0
