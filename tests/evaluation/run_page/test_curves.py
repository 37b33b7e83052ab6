"""Curves of a page: thinning keeps means, and the parts of the score add up to it."""

import math
import random

import pytest

from rlhf_dialog.evaluation.run_page.curves import build_curves, groups, iterations, number, reward_parts, thin_out


@pytest.mark.parametrize(
    ("num_rows", "limit", "points"), [(5, 400, 5), (400, 400, 400), (401, 400, 201), (1001, 400, 334)]
)
def test_thinning_has_at_most_so_many_points_and_keeps_the_mean(num_rows, limit, points):
    draw = random.Random(0)
    values = [draw.random() for _ in range(num_rows)]
    means = thin_out(values, limit)
    sizes = [group.stop - group.start for group in groups(num_rows, limit)]
    assert (len(means), sum(sizes)) == (points, num_rows)
    total = sum(mean * size for mean, size in zip(means, sizes, strict=True))
    assert total / num_rows == pytest.approx(sum(values) / num_rows, rel=1e-5)


def test_a_point_is_the_mean_of_the_known_numbers_of_its_neighbours():
    assert thin_out([1.0, 3.0, None, 5.0, math.nan, math.inf, 7.0], 4) == [2.0, 5.0, None, 7.0]
    rows = [{"iteration": i} for i in range(1, 8)]
    assert iterations(rows, 4) == [[1, 2], [3, 4], [5, 6], [7, 7]]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, True, "1"])
def test_what_is_not_a_finite_number_is_null(value):
    assert number(value) is None


def test_curves_are_of_metrics_with_numbers_but_not_of_seconds_and_counters():
    row = {
        "iteration": 1,
        "time_steps": 9,
        "episodes": 3,
        "time/update": 0.1,
        "ppo/value_loss": None,
        "own/metric": 1 / 3,
    }
    assert build_curves([row], 400) == {"own/metric": [0.333333]}
    many = {f"own/{i}": 1.0 for i in range(300)}
    assert len(build_curves([{"iteration": 1} | many], 400)) == 200


def row_with(score, intent, length, truncated=0.0):
    weighted = {"reward/intent_weighted": intent, "reward/length_weighted": length}
    raw = {"reward/intent": 0.9, "reward/length/own_weighted": 9.0}
    return {"iteration": 1, "objective/score": score, "response/truncated": truncated} | weighted | raw


def test_the_weighted_parts_add_up_to_the_score_with_the_truncation_penalty():
    rows = [row_with(0.45, 0.5, 0.2, truncated=0.25), row_with(-0.3, 0.5, 0.2, truncated=1.0)]
    parts = reward_parts(rows, {"truncation_penalty": 1.0})
    assert list(parts) == ["intent", "length", "truncation penalty"]
    assert parts["truncation penalty"] == pytest.approx([-0.25, -1.0])
    assert [sum(values[i] for values in parts.values()) for i in range(2)] == pytest.approx([0.45, -0.3])


def test_what_an_environment_pays_is_the_rest():
    parts = reward_parts([row_with(8.0, 0.5, 0.2)], {"truncation_penalty": 1.0})
    assert parts == {"intent": [0.5], "length": [0.2], "the rest (environment, penalties)": pytest.approx([7.3])}


def test_parts_that_explain_the_score_have_no_rest_and_unknown_ones_no_sum():
    assert list(reward_parts([row_with(0.7 + 1e-7, 0.5, 0.2)], {})) == ["intent", "length"]
    parts = reward_parts([row_with(1.0, 0.5, 0.2), row_with(1.0, None, 0.2)], {})
    assert parts["the rest (environment, penalties)"] == [pytest.approx(0.3), None]
    assert reward_parts([{"iteration": 1, "objective/score": 1.0}], {}) == {}
