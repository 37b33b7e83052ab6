"""The guard, on numbers made here: its formulas, and what each action does."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.runs.services.guard import Change, Guard, RunGuard, ValidationSnapshot, change

RISING, FALLING = ([0.0, 1.0, 2.0, 4.0], [1.0, 2.5, 3.0, 5.0], [3.0, 4.0, 5.5, 7.0]), (3.0, 2.0, 1.0)


def looks(judges):
    """Three validations in which the score of four prompts rises; a judge's numbers are those given, a little apart."""
    for i, score in enumerate(RISING):
        yield ValidationSnapshot(5 * (i + 1), score, [judges[i] + 0.01 * j * (i + 1) for j in range(4)])


def alarms(guard, judges):
    return [guard.add(look) for look in looks(judges)]


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
    guard = Guard("judge_x")
    *early, alarm = alarms(guard, FALLING)
    assert early == [None, None]
    assert alarm.since == 5
    assert alarm.sentence.startswith("from iteration 5 to 15 the score changed by +3.12 (standard error")
    assert "judge_x by -1.97" in alarm.sentence
    assert [one is not None for one in alarms(guard, FALLING)] == [False, False, True]  # needs three again


@pytest.mark.parametrize("judges", [(1.0, 2.0, 3.0), (1.0, 0.5, 1.0)])
def test_no_alarm_while_the_judge_follows_or_stays_or_the_score_falls_too(judges):
    assert alarms(Guard("judge_x"), judges) == [None] * 3
    guard = Guard("judge_x")
    for i, look in enumerate(looks(FALLING)):
        assert guard.add(ValidationSnapshot(look.iteration, RISING[2 - i], look.judge)) is None


def test_the_last_validation_is_compared_with_the_one_two_before():
    """The judge falls at first and then rises a little in each validation; the score rises from the fourth on."""
    guard = Guard("judge_x")
    for i, (score, judge) in enumerate(zip((0.0, 0.0, 0.0, 5.0, 9.0), (9.0, 1.0, 1.2, 1.4, 1.6), strict=True)):
        look = ValidationSnapshot(i, [score + 0.1 * j * i for j in range(4)], [judge + 0.01 * j * i for j in range(4)])
        assert guard.add(look) is None
    assert guard.last["score"].is_rise
    assert guard.last["judge"].mean == pytest.approx(0.4 + 0.03)


def test_the_state_is_json_from_which_another_guard_goes_on_alike():
    """Also where a number is missing, and the prompts of one dialogue are no evidence then."""
    guard, *rest = Guard("judge_x"), *looks(FALLING)
    guard.add(replace(rest[0], score=[math.nan, *rest[0].score[1:]]))
    guard.add(rest[1])
    state = json.loads(json.dumps(guard.state_dict(), allow_nan=False))
    for dialogues, is_alarm in (([3, 3, 3, 3], False), ([0, 1, 2, 3], True)):
        other = Guard("judge_x")
        other.load_state_dict(state)
        assert (other.add(replace(rest[2], dialogues=dialogues)) is not None) == is_alarm
        assert other.last["score"].num_dialogues == (3 if is_alarm else 1)


class Watched:
    """A run with validations in its iterations 5, 10 and 15, and checkpoints of 4 and 6; `guard` has seen them all."""

    iteration, done, judge = 4, False, "judge_x"

    def __init__(self, folder, action, judges=FALLING):
        self.world, self.folder, self.found, self.protected = World(), folder, [], []
        for iteration in (4, 6):
            (folder / f"checkpoints/iter_{iteration:06d}").mkdir(parents=True, exist_ok=True)
        self.guard = RunGuard(action, self)
        assert self.guard.after_iteration(self, {}) == {}
        for look in looks(judges):
            self.iteration = look.iteration
            self.measured = SimpleNamespace(
                per_prompt={"score": np.array(look.score), "judge_x": np.array(look.judge)}, dialogues=None
            )
            self.found.append(self.guard.after_iteration(self, {}))
            self.protected.append(self.guard.state_dict()["protected"])

    def due(self, iteration, done):
        return iteration % 5 == 0

    def again(self, action):
        """A guard that goes on from the state of this one."""
        other = RunGuard(action, self)
        other.load_state_dict(json.loads(json.dumps(self.guard.state_dict())))
        return other


def test_an_alarm_stops_the_run_after_a_checkpoint_again_and_again_until_it_may_only_warn(tmp_path, caplog):
    run = Watched(tmp_path, "stop")
    assert run.guard.wants(run) == {"save", "stop"}
    assert run.protected == [[5], [5, 10], [5]]
    for stop in (lambda: run.guard.iteration_ended(run, True), lambda: run.again("stop").begin(run)):
        with pytest.raises(RunStopped, match=r"from iteration 5 to 15 .* --checkpoint iter_000004 "):
            stop()
    run.again("warn").begin(run)
    assert not caplog.records
    assert Watched(tmp_path, "stop", (1.0, 2.0, 3.0)).protected[2] == [10, 15]


def test_a_warning_does_not_stop_and_the_changes_are_metrics(tmp_path, caplog):
    run = Watched(tmp_path, "warn")
    assert [metrics["guard/alarm"] for metrics in run.found] == [0, 0, 1]
    assert (run.found[1].keys(), run.protected) == ({"guard/alarm"}, [[], [], []])
    score, error, judge = (run.found[2][f"guard/{name}"] for name in ("score_change", "score_error", "judge_change"))
    assert (score, error, judge) == pytest.approx((3.125, 0.125, -1.97))  # changes 3, 3, 3.5, 3
    assert "from iteration 5 to 15" in caplog.text
    assert run.guard.wants(run) == set()
    run.guard.iteration_ended(run, True)


def test_what_earlier_versions_stored_without_a_judge_is_not_compared(tmp_path):
    look = {"iteration": 5, "score": [1.0], "judge": None, "signs": {}}
    alarm = {"sentence": "x", "since": 5, "is_judged": True}
    guard = Watched(tmp_path, "stop").again("stop")
    guard.load_state_dict({"guard": {"looks": [look], "first": {}, "said": [], "num_raised": 0}, "alarm": alarm})
    assert (guard.guard.looks, guard.alarm.since) == ([], 5)
