"""A simulated month: what a night records, going on after a kill, other settings, and the cap on the troll, exactly."""

from fractions import Fraction

import pytest

from experiments.month import simulation
from experiments.month.simulation import Month, MonthKeys
from experiments.month.tests.months import month_keys


def keys_of(inputs, output, **keys):
    return MonthKeys(**month_keys(inputs, output, **keys))


@pytest.fixture(scope="module")
def month(month_inputs, tmp_path_factory):
    one = Month(keys_of(month_inputs, tmp_path_factory.mktemp("month") / "month"))
    assert [row["night"] for row in one.nights()] == [1, 2]
    return one


def without_names(rows):
    """Rows without hashes and what depends on the random salt of a store."""
    return [{key: value for key, value in row.items() if key not in ("before", "after")} for row in rows]


class Killed(BaseException):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("where", ["in the day", "before the row"])
def test_a_month_that_was_interrupted_goes_on_to_the_same_end(month_inputs, month, tmp_path, monkeypatch, where):
    def kill(*_, **__):
        raise Killed

    keys = keys_of(month_inputs, tmp_path / "month")
    with monkeypatch.context() as patched:
        one = Month(keys)
        next(one.nights())
        if where == "in the day":
            patched.setattr(simulation.Host, "sampling", kill)  # some of the rows are stored
        else:
            patched.setattr(Month, "_end", kill)
        with pytest.raises(Killed):
            next(one.nights())
    assert (tmp_path / "month" / "morning.sqlite").exists() == (where == "in the day")
    one = Month(keys)
    assert len(one.rows) == 2
    list(one.nights())
    ours, theirs = without_names(one.rows), without_names(month.rows)
    assert [row["events"] for row in ours] == [row["events"] for row in theirs]
    assert [row["liked"] for row in ours] == [row["liked"] for row in theirs]
    assert [row["promoted"] for row in ours] == [row["promoted"] for row in theirs]
    store = one.bot.store()
    assert store.feedback(newest=False) != []
    assert len({one.id for one in store.dialogues()}) == len(store.dialogues())


@pytest.mark.parametrize(
    ("counts", "cap", "within"),
    [
        ({"troll": 1, "a": 4}, 0.2, True),  # of two people each may have half
        ({"troll": 3, "a": 1, "b": 2, "c": 3, "d": 3, "e": 3}, 0.2, True),  # 3 of 15: exactly the cap
        ({"troll": 4, "a": 1, "b": 2, "c": 3, "d": 3, "e": 6}, 0.2, False),  # 4 of 19
        ({"troll": Fraction(1, 5), "a": Fraction(4, 5), "b": 0, "c": 0, "d": 0}, 0.2, True),
        ({"a": 1}, 0.2, True),
        ({}, 0.2, True),
    ],
)
def test_the_cap_is_compared_exactly(counts, cap, within):
    assert simulation._is_within(counts, "troll", cap) == within
