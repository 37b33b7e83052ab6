"""Scores of a reward: what counts as one, what is skipped, what is computed beside, and a reward's life in a run."""

import math
import threading
import time

import numpy as np
import pytest

from rlhf_dialog.rewards import BaseReward, CompositeReward, RewardError, score_dialogues
from rlhf_dialog.rewards.base import NoScore, Part
from rlhf_dialog.rewards.scoring import (
    Scorer,
    ScoringRules,
    begin_scoring,
    load_state,
    metrics_of,
    score_in_background,
    state_of,
)
from tests.parts.given import DIALOGUES, Given
from tests.parts.judges import Halved, summed
from tests.parts.prices import Price, priced

pytestmark = pytest.mark.usefixtures("own_rewards", "price")


def test_a_single_reward_is_one_part_of_weight_one():
    class Slow(Given):
        def __call__(self, dialogues):
            time.sleep(0.05)
            return super().__call__(dialogues)

    scores = score_dialogues(Slow(0.25), DIALOGUES)
    assert (scores.total, list(scores.parts)) == ([0.25] * 3, ["slow"])
    assert scores.parts["slow"].raw == scores.parts["slow"].weighted == [0.25] * 3
    assert 0.05 <= scores.parts["slow"].seconds < 60


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_lists_and_arrays_are_welcome(kind):
    scores = score_dialogues(Given(kind([1, True, 0.5]), per_dialogue=False), DIALOGUES)
    assert scores.total == [1.0, 1.0, 0.5]
    assert all(type(value) is float for value in scores.total)


@pytest.mark.parametrize(
    ("value", "per_dialogue", "message"),
    [
        ([1.0, 2.0], False, r"'given' returned 2 values for 3 dialogues"),
        (None, False, r"'given' returned NoneType; it must return a list"),
        ([0.0, 0.0, "high"], False, r"'given' gave 'high', which is not a number, for dialogue 2 .*'the cat sat'"),
        ([0.0, None, 0.0], False, r"'given' gave None, which is not a number, for dialogue 1 with the response ''"),
        ([0.0, 0.0, float("nan")], False, r"gave nan, which is not finite, for dialogue 2 .*'the cat sat'"),
        (float("-inf"), True, r"gave -inf, which is not finite, for dialogue 0 .*'one two'"),
    ],
)
def test_unusable_values(value, per_dialogue, message):
    reward = Given(value, per_dialogue)
    with pytest.raises(RewardError, match=message):
        score_dialogues(reward, DIALOGUES)
    with pytest.raises(RewardError, match=message):
        CompositeReward([{"id": "Given", "args": {"value": value, "per_dialogue": per_dialogue}}])(DIALOGUES)


SKIP = ScoringRules(skip_unscored=True)


def test_skip_makes_none_and_what_is_not_finite_a_nan(caplog):
    values = [None, math.inf, 2.0]
    inner = {
        "id": "CompositeReward",
        "args": {"parts": [{"id": "Given", "args": {"value": [1, -math.inf, 3], "per_dialogue": False}}]},
    }
    reward = CompositeReward([{"id": "Given", "weight": 0.0, "args": {"value": values, "per_dialogue": False}}, inner])
    scores = score_dialogues(reward, DIALOGUES, SKIP)
    assert [str(value) for value in scores.total] == ["nan", "nan", "3.0"]
    assert [str(value) for value in scores.parts["given"].raw] == ["nan", "nan", "2.0"]
    assert [str(value) for value in scores.parts["composite"].raw] == ["1.0", "nan", "3.0"]
    assert caplog.text.count("reward 'given' gave no score for 2 of 3 dialogues (the first is number 0: None)") == 1
    assert caplog.text.count("reward 'given' gave no score for 1 of 3 dialogues (the first is number 1: -inf)") == 1
    kept = scores.select([2])
    assert (kept.total, kept.parts["given"].weighted, kept.parts["composite"].raw) == ([3.0], [0.0], [3.0])


@pytest.mark.parametrize("value", [["high", 1.0, 1.0], [1.0, 2.0], None, ValueError("bug")])
def test_skip_forgives_no_bug(value):
    with pytest.raises(RewardError):
        score_dialogues(Given(value, per_dialogue=False), DIALOGUES, SKIP)


def test_the_reason_of_a_missing_score_comes_through_sums_of_sums():
    class Server(Given):
        def score_available(self, dialogues):
            return [NoScore("no answer"), None, 5]

    class Sum(BaseReward):
        def __init__(self, name, reward):
            self.sum_name, self.reward = name, reward

        @property
        def name(self):
            return self.sum_name

        def weighted_parts(self):
            return {self.reward.name: Part(2.0, self.reward)}

    scores = score_dialogues(Sum("outer", Sum("inner", Server(1.0))), DIALOGUES, SKIP)
    first, second, third = scores.parts["inner"].raw
    assert (first.why, second.why, third) == ("server: no answer", "server: gave no score", 10.0)
    assert (scores.total[2], scores.parts["inner"].weight) == (20.0, 2.0)


class Threaded(BaseReward):
    """Says in which thread it was asked."""

    def __init__(self, label, uses_device=False, error=None):
        self.label, self.uses_device, self.error, self.threads = label, uses_device, error, []

    @property
    def name(self):
        return self.label

    def __call__(self, dialogues):
        self.threads.append(threading.current_thread())
        if self.error:
            raise self.error
        return [float(len(dialogue.response)) for dialogue in dialogues]


def beside(*rewards):
    reward = summed(*rewards)
    return reward, score_in_background(reward, DIALOGUES)


def test_parts_without_a_device_are_computed_beside_and_the_scores_are_the_same():
    text, device = Threaded("text"), Threaded("device", uses_device=True)
    reward, scores = beside(device, text)
    text_began_at_once = wait_for(lambda: text.threads)
    assert text_began_at_once
    assert not device.threads
    found = scores()
    assert device.threads == [threading.current_thread()]
    assert text.threads != device.threads
    same = score_dialogues(reward, DIALOGUES)
    assert found.total == same.total
    assert list(found.parts) == ["device", "text"]
    assert [part.raw for part in found.parts.values()] == [part.raw for part in same.parts.values()]
    assert [part.weighted for part in found.parts.values()] == [part.weighted for part in same.parts.values()]


def test_an_error_beside_is_raised_when_the_scores_are_asked_for():
    _, scores = beside(Threaded("text", error=ZeroDivisionError("no")))
    with pytest.raises(RewardError, match=r"reward 'text' raised ZeroDivisionError: no"):
        scores()


def test_a_reward_that_uses_the_device_waits_for_its_turn():
    single = Threaded("device", uses_device=True)
    scores = score_in_background(single, DIALOGUES)
    assert not single.threads
    assert scores().parts["device"].raw == [float(len(dialogue.response)) for dialogue in DIALOGUES]


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_a_scorer_asks_its_reward_by_its_rules():
    skipping = Scorer(Given([None, 5.0, 5.0], per_dialogue=False), SKIP)
    for scores in (skipping.score(DIALOGUES), skipping.begin(DIALOGUES)()):
        assert [str(value) for value in scores.total] == ["nan", "5.0", "5.0"]


def test_a_penalty_of_what_was_cut_is_taken_from_the_total():
    scorer = Scorer(BaseReward(), truncation_penalty=0.5)
    totals = np.array([1.0, 2.0, math.nan])
    assert str(scorer.subtract_truncation_penalty(totals, np.array([False, True, True])).tolist()) == "[1.0, 1.5, nan]"
    assert Scorer(BaseReward()).subtract_truncation_penalty(totals[:2], np.array([True, True])).tolist() == [1.0, 2.0]


def test_names_of_states_and_numbers_inside_of_rewards():
    one, two, three = priced(1.0, 2.0, 3.0)
    reward = summed(one, two, summed(Halved(three)))
    states = {"price": {"coef": 1.0}, "price_2": {"coef": 2.0}, "composite": {"halved": {"price": {"coef": 3.0}}}}
    assert state_of(reward) == states
    names = {"price/coef": 1.0, "price_2/coef": 2.0, "composite/halved/price/coef": 3.0}
    assert metrics_of(reward) == names
    load_state(reward, {"price_2": {"coef": 5.0}, "composite": {"halved": {"price": {"coef": 6.0}}}, "gone": {}})
    assert [reward.coef for reward in (one, two, three)] == [1.0, 5.0, 6.0]
    begin_scoring(reward, "rollout", 7)
    assert Price.told == [("rollout", 7, True)] * 3


def test_a_number_of_a_sum_itself_cannot_be_taken_for_a_part():
    reward = summed(*priced(1.0))
    reward.metrics = lambda: {"price": 2.0, "price/coef": 1.0, "other/coef": 3}
    assert metrics_of(reward) == {"composite/price": 2.0, "price/coef": 1.0, "composite/other/coef": 3.0}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("method", "ask"),
    [
        ("begin_scoring", lambda reward: begin_scoring(reward, "rollout", 1)),
        ("metrics", metrics_of),
        ("state_dict", state_of),
        ("load_state_dict", lambda reward: load_state(reward, {"price": {}})),
    ],
)
def test_an_error_in_its_life_names_the_reward_and_the_line(nested, method, ask):
    class Broken(Price):
        pass

    def bad(*_):
        raise ZeroDivisionError("no")

    setattr(Broken, method, bad)
    with pytest.raises(RewardError, match=r"^reward 'price' raised ZeroDivisionError: no at .*test_scoring\.py:\d+$"):
        ask(summed(Broken()) if nested else Broken())


@pytest.mark.parametrize(
    ("method", "value", "said"),
    [
        ("metrics", {"coef": "high"}, "metrics() returned 'high' for 'coef'; return a number"),
        ("state_dict", {"seen": {1, 2}}, "state_dict() is not JSON (Object of type set is not JSON serializable)"),
        ("state_dict", [1.0], "state_dict() returned list; return a dict"),
    ],
)
def test_what_its_life_may_not_return(method, value, said):
    reward = Price()
    setattr(reward, method, lambda: value)
    with pytest.raises(RewardError) as caught:
        {"metrics": metrics_of, "state_dict": state_of}[method](reward)
    assert f"reward 'price': {said}" in str(caught.value)
