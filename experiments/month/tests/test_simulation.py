"""A simulated month: what a night records, going on after a kill, other settings, and the cap on the troll, exactly."""

import json
import re
import shutil
from fractions import Fraction

import pytest

from experiments.month import simulation
from experiments.month.people import People, liked_share
from experiments.month.simulation import Month, MonthKeys
from experiments.month.tests.months import month_keys
from rlhf_dialog.errors import UserError
from tests.parts.taught_bots import SETTINGS


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


@pytest.mark.slow
def test_the_first_row_is_a_night_without_feedback_in_which_nothing_drifts(month):
    row = month.rows[0]
    assert (row["events"], row["promoted"], row["champion"]) == (0, None, "0001")
    assert row["equal"]
    assert row["before"] == row["after"]
    assert row["why"].startswith("nothing changed: 0 of about 30 ratings: ")


@pytest.mark.slow
def test_a_row_says_what_the_night_did(month):
    versions = month.bot.lineage()["versions"]
    for number, row in enumerate(month.rows[1:], 1):
        record = versions[row["version"]]
        assert row["night"] == number
        assert row["promoted"] == record["gate"]["promoted"]
        assert row["events"] == record["last_event"]
        assert row["troll_events"] / row["events"] == pytest.approx(0.4, abs=0.01)
        assert 0 <= row["liked"] <= 1
    assert month.rows[-1]["champion"] == month.bot.champion()
    assert [json.loads(line) for line in month.path.read_text().splitlines()] == month.rows


@pytest.mark.slow
def test_another_night_without_feedback_changes_no_file(month):
    drift = month.drift()
    assert drift["equal"]
    assert drift["why"].startswith("nothing changed: ")


@pytest.mark.slow
def test_the_liked_share_is_of_the_champion_on_prompts_of_the_test_split(month, monkeypatch):
    monkeypatch.setattr(month, "rows", [])
    seen = []
    monkeypatch.setattr(simulation, "liked_share", lambda answers, taste: seen.append(answers) or 0.25)
    assert month._measured()["liked"] == 0.25
    assert len(seen[0]) == 5
    assert liked_share(["", "One", "One two"], month.keys.taste) == pytest.approx(1 / 3)
    assert {prompt.meta["split"] for prompt in month.prompts} == {"test"}


class Killed(BaseException):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("where", ["in the day", "in the night", "before the row"])
def test_a_month_that_was_interrupted_goes_on_to_the_same_end(month_inputs, month, tmp_path, monkeypatch, where):
    def kill(*_, **__):
        raise Killed

    keys = keys_of(month_inputs, tmp_path / "month")
    with monkeypatch.context() as patched:
        one = Month(keys)
        next(one.nights())
        if where == "in the day":
            patched.setattr(simulation.Host, "sampling", kill)  # some of the rows are stored
        elif where == "in the night":
            patched.setattr(simulation, "learn", kill)
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


@pytest.mark.slow
def test_more_nights_may_be_added_but_nothing_else_changes(month_inputs, month, tmp_path):
    shutil.copytree(month.folder, tmp_path / "copy")
    assert len(Month(keys_of(month_inputs, tmp_path / "copy", nights=3)).rows) == 3
    message = "the month in '" + str(tmp_path / "copy") + "' has another noise, learning; set it as in"
    with pytest.raises(UserError, match=re.escape(message)):
        Month(keys_of(month_inputs, tmp_path / "copy", noise=0.1, learning={**SETTINGS, "beta": 0.3}))


def test_a_folder_that_holds_something_else_is_left_alone(month_inputs, tmp_path):
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(UserError, match="is not an empty folder, and not that of a month; choose another one"):
        Month(keys_of(month_inputs, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]


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


@pytest.mark.slow
def test_the_trolls_shares_of_training_set_and_gate(month, monkeypatch):
    """Counted here from the snapshot, with the weights of the held-out set."""
    store = month.bot.store()
    troll = store.hash_person("troll")
    store.close()
    monkeypatch.setattr(month, "people", None)
    snapshot = simulation.take_snapshot(month.bot, simulation.read_settings(month.bot.settings_path))
    found = simulation.troll_shares(month.bot)
    weights = snapshot.heldout.weights
    own = sum(weights[one.event] for one in snapshot.heldout.all if one.person == troll)
    assert found["troll_gate"] == pytest.approx(own / sum(weights.values()))
    assert found["troll_gate"] <= 0.2 + 1e-12
    assert found["within_cap"]


def test_people_talk_by_the_seed_of_the_month(month_inputs, tmp_path):
    one = Month(keys_of(month_inputs, tmp_path / "month", seed=3))
    assert isinstance(one.people, People)
    assert one.people.seed == 3
    assert simulation.read_settings(one.bot.settings_path).seed == 3
