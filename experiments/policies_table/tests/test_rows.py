"""Cells become rows."""

import pytest

from experiments.policies_table.rows import rows_of, without_dialogues
from experiments.policies_table.tests.policy_cells import cell, few_cells, point


def row(rows, policy, mark):
    return next(row for row in rows if (row["policy"], row["mark"]) == (policy, mark))


def test_the_seeds_of_a_policy_are_one_row_for_each_mark():
    rows = rows_of(few_cells())
    assert [(row["policy"], row["mark"]) for row in rows] == [
        *(("random", 0), ("handcrafted", 0), ("good", 10), ("good", 20), ("bad", 10), ("bad", 20))
    ]
    good = row(rows, "good", 20)
    assert good["seeds"] == [0, 1]
    assert good["reward"]["mean"] == 10.0
    assert good["seed_means"]["reward"] == [10.0, 10.0]
    assert row(rows, "good", 10)["success"]["mean"] == 0.5
    seconds = {"cpu_seconds": 4.0, "wall_seconds": 4.0}
    assert good["training"] == {"dialogues": 20.0, "turns": 640.0, "updates": 10.0, "parameters": 30.0, **seconds}


def test_the_difference_from_the_handcrafted_policy_is_that_of_each_dialogue():
    """Seed 0 gains 2 and 2, seed 1 gains 0 and 4: squares 0 of seeds, 4 of dialogues and 4 of the rest, so the variance of the
    mean is that of the rest, 4 / 4, with one degree of freedom."""
    rows = rows_of(few_cells())
    found = row(rows, "good", 20)["difference_from_handcrafted"]
    assert found["reward"]["mean"] == 2.0
    assert found["reward"]["high"] == pytest.approx(2 + 12.7062, abs=1e-3)
    assert found["success"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert row(rows, "handcrafted", 0)["difference_from_handcrafted"]["reward"]["mean"] == 0.0
    assert rows_of(few_cells()[2:])[0]["difference_from_handcrafted"] is None


def test_a_row_is_compared_with_the_baselines_of_its_own_error_rate():
    others = [("random", [2.0, 2.0]), ("handcrafted", [5.0, 5.0]), ("good", [1.0, 1.0])]
    rows = rows_of([*few_cells(), *(cell(name, 0, point(0, own), error_rate=0.3) for name, own in others)])
    assert rows[-1]["loses_to_random"]
    assert rows[-1]["difference_from_handcrafted"]["reward"]["mean"] == -4.0
    assert not row(rows, "good", 20)["loses_to_random"]


def test_a_row_in_words_has_rules_of_its_own():
    own = point(0, [7.0, 7.0], dialogues=None) | {
        "handcrafted": {name: [6.0, 6.0] for name in ("success", "reward", "turns")}
    }
    found = rows_of([*few_cells(), cell("language_model", 0, own)])[-1]
    assert found["difference_from_handcrafted"]["reward"]["mean"] == 1.0
    assert found["training"]["dialogues"] is None
    assert "handcrafted" not in without_dialogues([cell("language_model", 0, own)])[0]["points"][0]
