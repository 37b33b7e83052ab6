"""The formulas of the guard, on numbers made here."""

import json
import math

import numpy as np
import pytest

from rlhf_dialog.runs.services.guard import (
    BOUNDS,
    DISTINCT,
    ENTROPY,
    KL,
    WINDOW,
    WORDS,
    Guard,
    GuardLimit,
    ValidationSnapshot,
    change,
)

SIGNS = {DISTINCT: 0.5, WORDS: 10.0, ENTROPY: 2.0, KL: 1.0}
RISING, FALLING = ([0.0, 1.0, 2.0, 4.0], [1.0, 2.5, 3.0, 5.0], [3.0, 4.0, 5.5, 7.0]), (3.0, 2.0, 1.0)


def looks(judges=None, **changes):
    """Three validations in which the score of four prompts rises; a judge's numbers are those given, a little apart."""
    for i, score in enumerate(RISING):
        judge = None if judges is None else [judges[i] + 0.01 * j * (i + 1) for j in range(4)]
        yield ValidationSnapshot(5 * (i + 1), score, judge, SIGNS | (changes if i == 2 else {}))


def alarms(guard, *more, **changes):
    return [guard.add(look) for look in looks(*more, **changes)]


def test_a_change_is_paired_and_leaves_out_what_has_no_number():
    first, last = np.array([1.0, 5.0, 9.0, math.nan]), np.array([2.0, 7.0, 12.0, 1.0])
    found = change(first, last)
    assert (found.mean, found.error) == (2.0, pytest.approx(1 / math.sqrt(3)))  # changes 1, 2, 3: deviation 1
    assert found.is_rise
    assert not found.is_fall
    assert change(last, first).is_fall
    assert not change(first, first + np.array([4.0, -3.0, 1.0, 0.0])).is_rise
    assert math.isnan(change(first[3:], last[3:]).mean)


def test_a_score_that_rises_while_the_judge_falls_is_an_alarm_at_the_third_validation():
    *early, alarm = alarms(Guard("judge_x"), FALLING)
    assert early == [None, None]
    assert (alarm.since, alarm.is_judged) == (5, True)
    assert alarm.sentence.startswith("from iteration 5 to 15 the score changed by +3.12 (standard error")
    assert "but the judge judge_x by -1.97" in alarm.sentence


@pytest.mark.parametrize("judges", [(1.0, 2.0, 3.0), (1.0, 0.5, 1.0), None])
def test_no_alarm_while_the_judge_follows_or_stays_or_where_there_is_none(judges):
    assert alarms(Guard("judge_x"), judges) == [None] * 3


def test_no_alarm_where_the_score_falls_too():
    guard = Guard("judge_x")
    for i, look in enumerate(looks(FALLING)):
        assert guard.add(ValidationSnapshot(look.iteration, RISING[2 - i], look.judge, look.signs)) is None


def test_after_an_alarm_three_validations_are_needed_again():
    guard = Guard("judge_x")
    found = [*alarms(guard, FALLING), *alarms(guard, FALLING)]
    assert [one is not None for one in found] == [False, False, True] * 2


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        (DISTINCT, 0.2, "0.4 (at least 0.6"),
        (WORDS, 25.0, "2.5 (at most 2"),
        (ENTROPY, 0.4, "0.2 (at least 0.3"),
        (KL, 5.0, "5 (at most 4"),
    ],
)
def test_each_sign_of_decay_warns_once_and_is_not_the_judges(name, value, shown):
    guard = Guard()
    alarm = alarms(guard, **{name: value})[-1]
    assert not alarm.is_judged
    assert f"{name} {shown}: FAILED)" in alarm.sentence
    assert alarms(guard, **{name: value})[-1] is None
    assert set(BOUNDS) == set(SIGNS)


def test_a_sign_without_a_number_is_left_out():
    guard = Guard()
    for look in looks():
        assert guard.add(ValidationSnapshot(look.iteration, look.score, None, {DISTINCT: 0.5})) is None


def test_the_state_is_json_from_which_another_guard_goes_on_alike():
    guard, other = Guard("judge_x"), Guard("judge_x")
    first, *rest = looks((3.0, 2.0, 1.0))
    guard.add(ValidationSnapshot(first.iteration, [math.nan, *first.score[1:]], first.judge, first.signs))
    guard.num_raised = 1
    other.load_state_dict(json.loads(json.dumps(guard.state_dict(), allow_nan=False)))
    assert [guard.add(look) for look in rest] == [other.add(look) for look in rest]
    assert (other.num_raised, len(other.looks)) == (1, 0)
    assert WINDOW == 3


def test_a_limit_shows_that_it_failed_and_what_is_no_number_fails():
    assert str(GuardLimit("KL", 0.5, 0.4, True)) == "KL 0.5 (at most 0.4: FAILED)"
    assert str(GuardLimit("distinct-2", 0.5, 0.4, False)) == "distinct-2 0.5 (at least 0.4)"
    assert not GuardLimit("KL", math.nan, 0.4, True).passed
    assert GuardLimit("KL", math.nan, 0.4, True).as_json()["value"] is None
