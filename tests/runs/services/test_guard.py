"""The formulas of the guard, on numbers made here."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from rlhf_dialog.runs.services.guard import (
    BOUNDS,
    DISTINCT,
    ENTROPY,
    KL,
    WINDOW,
    WORDS,
    Change,
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
    found = change(first, last, np.arange(4))
    assert (found.mean, found.error) == (2.0, pytest.approx(1 / math.sqrt(3)))  # changes 1, 2, 3: deviation 1
    assert math.isnan(change(first[3:], last[3:], np.arange(1)).mean)


def test_each_dialogue_counts_once_in_a_change():
    """Prompts with the changes 1, 3 | 4, 6, 8, none | 1: dialogues with the means 2, 6 and 1, whose deviation is sqrt(7)."""
    last = np.array([1.0, 3.0, 4.0, 6.0, 8.0, math.nan, 1.0])
    found = change(np.zeros(7), last, np.array([0, 0, 1, 1, 1, 1, 2]))
    assert (found.mean, found.error, found.num_dialogues) == (3.0, pytest.approx(math.sqrt(7 / 3)), 3)
    assert math.isnan(change(np.zeros(7), last, np.zeros(7, dtype=int)).error)


@pytest.mark.parametrize(("num_dialogues", "least"), [(5, 5.4366), (64, 2.8717)])
def test_a_change_must_exceed_the_quantile_of_a_twentieth_shared_by_18_comparisons(num_dialogues, least):
    """Where 0.05 / 18 of Student's density of 4 and 63 degrees of freedom lies above, by numerical integration."""
    assert [Change(mean, 1.0, num_dialogues).is_rise for mean in (least - 0.001, least + 0.001)] == [False, True]
    assert [Change(-mean, 1.0, num_dialogues).is_fall for mean in (least - 0.001, least + 0.001)] == [False, True]
    assert not Change(-9.0, 1.0, num_dialogues).is_rise


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


def test_the_prompts_of_one_dialogue_are_no_evidence_also_after_a_stop():
    """Four prompts that are one dialogue in the newest validation; a checkpoint of a version that did not store dialogues."""
    guard, *rest = Guard("judge_x"), *looks(FALLING)
    for look in rest[:2]:
        guard.add(look)
    state = json.loads(json.dumps(guard.state_dict()))
    assert [look.pop("dialogues") for look in state["looks"]] == [None, None]
    for dialogues, is_alarm in (([3, 3, 3, 3], False), ([0, 1, 2, 3], True)):
        guard.load_state_dict(state)
        assert (guard.add(replace(rest[2], dialogues=dialogues)) is not None) == is_alarm


def test_the_last_validation_is_compared_with_the_one_two_before():
    """The judge falls at first and then rises a little in each validation; the score rises from the fourth on."""
    guard = Guard("judge_x")
    for i, (score, judge) in enumerate(zip((0.0, 0.0, 0.0, 5.0, 9.0), (9.0, 1.0, 1.2, 1.4, 1.6), strict=True)):
        look = ValidationSnapshot(
            i, [score + 0.1 * j * i for j in range(4)], [judge + 0.01 * j * i for j in range(4)], SIGNS
        )
        assert guard.add(look) is None
    assert guard.last[0].is_rise
    assert guard.last[1].mean == pytest.approx(0.4 + 0.03)


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
