"""A row's numbers, by hand."""

import numpy as np
import pytest

from rlhf_dialog.evaluation.audit.rows import summary_row
from rlhf_dialog.evaluation.audit.scoring import ScoreTable

NAN = np.nan


def test_a_row_by_hand():
    true = ScoreTable(np.asarray([1.0, 2, 3, 4]), {}, {"judge": np.asarray([1.0, 1, 1, 1])})
    here = ScoreTable(
        np.asarray([2.0, 2, NAN, 7]),
        {"a": np.asarray([1.0, 2, NAN, 3])},
        {"judge": np.asarray([0.0, NAN, NAN, 0.5])},
    )
    row = summary_row(here, true, np.arange(4), seed=0)
    assert row["num_prompts"] == 3
    assert row["paid"]["mean"] == pytest.approx(11 / 3)
    assert row["difference"]["mean"] == pytest.approx((1 + 0 + 3) / 3)  # on the prompts that have both
    assert row["difference"]["low"] < row["difference"]["mean"] < row["difference"]["high"]
    assert row["more"]["mean"] == pytest.approx(2 / 3)  # an equal score is not more
    assert row["parts"] == {"a": 2.0}
    assert row["judges"]["judge"]["difference"]["mean"] == pytest.approx(-0.75)
    assert row["judges"]["judge"]["mean"]["mean"] == 0.25


def test_prompts_of_one_dialogue_are_one_unit():
    """With two dialogues, of which each has ten prompts, the interval is wider than with twenty."""
    values = np.asarray([1.0] * 10 + [2.0] * 10)
    zero = ScoreTable(np.zeros(20), {})
    together, apart = (
        summary_row(ScoreTable(values, {}), zero, units, 0)["difference"]
        for units in (np.repeat([0, 1], 10), np.arange(20))
    )
    assert together["high"] - together["low"] > 5 * (apart["high"] - apart["low"])


def test_a_kind_that_no_prompt_has_is_not_a_number():
    nothing = ScoreTable(np.full(12, NAN), {"a": np.full(12, NAN)})
    row = summary_row(nothing, ScoreTable(np.ones(12), {}), np.arange(12), 0)
    assert row["num_prompts"] == 0
    assert not row["difference"]["low"] > 0
    assert np.isnan(row["parts"]["a"])
