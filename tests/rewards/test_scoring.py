"""How a reward is asked: what counts as a score, what is skipped, computed beside or too late, its errors, its life in a run."""

import asyncio
import math
import re
import socket
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

from rlhf_dialog.errors import RunStopped, SignalExit, UserError
from rlhf_dialog.rewards import BaseReward, CompositeReward, RewardError
from rlhf_dialog.rewards.base import NoScore, Part
from rlhf_dialog.rewards.scoring import RewardTimeout, Scorer, begin_scoring, load_state, metrics_of, state_of
from tests.parts import given
from tests.parts.given import DIALOGUES, Given
from tests.parts.judges import Halved, summed
from tests.parts.prices import Price, priced
from tests.parts.processes import run_python

pytestmark = pytest.mark.usefixtures("own_rewards", "price")


def scored(reward, **rules):
    return Scorer(reward, **rules).score(DIALOGUES)


def texts(values):
    """NaN equals nothing, but its text does."""
    return [str(value) for value in values]


def test_a_single_reward_is_one_part_of_weight_one():
    class Slow(Given):
        def __call__(self, dialogues):
            time.sleep(0.05)
            return super().__call__(dialogues)

    scores = scored(Slow(0.25))
    assert (scores.total, list(scores.parts)) == ([0.25] * 3, ["slow"])
    assert scores.parts["slow"].raw == scores.parts["slow"].weighted == [0.25] * 3
    assert 0.05 <= scores.parts["slow"].seconds < 60


@pytest.mark.parametrize("kind", [tuple, np.array])
def test_tuples_and_arrays_are_welcome(kind):
    total = scored(Given(kind([1, True, 0.5]), per_dialogue=False)).total
    assert [(value, type(value)) for value in total] == [(1.0, float), (1.0, float), (0.5, float)]


@pytest.mark.parametrize(
    ("value", "words", "is_bug"),
    [
        ([1.0, 2.0], "2 values for 3 dialogues", True),
        (None, "NoneType", True),
        ([0.0, 0.0, "high"], "'high'.*not a number.*dialogue 2 .*'the cat sat'", True),
        (ValueError("bug"), "ValueError: bug", True),
        ([0.0, None, 0.0], "None.*not a number.*dialogue 1 ", False),
        ([0.0, 0.0, math.nan], "nan.*not finite.*dialogue 2 ", False),
        ([-math.inf, 0.0, 0.0], "-inf.*not finite.*dialogue 0 ", False),
    ],
)
def test_unusable_values(value, words, is_bug):
    """skip_unscored forgives no bug."""
    part = {"id": "Given", "args": {"value": value, "per_dialogue": False}}
    for score in (lambda: scored(Given(value, False)), lambda: CompositeReward([part])(DIALOGUES)):
        with pytest.raises(RewardError, match=f"'given' .*{words}"):
            score()
    if is_bug:
        with pytest.raises(RewardError):
            scored(Given(value, False), skip_unscored=True)


def test_skip_makes_none_and_what_is_not_finite_a_nan(caplog):
    values = [None, math.inf, 2.0]
    inner = {"id": "Given", "args": {"value": [1, -math.inf, 3], "per_dialogue": False}}
    parts = [{"id": "Given", "weight": 0.0, "args": {"value": values, "per_dialogue": False}}]
    scorer = Scorer(CompositeReward([*parts, {"id": "CompositeReward", "args": {"parts": [inner]}}]), True)
    scores = scorer.score(DIALOGUES)
    assert texts(scores.total) == texts(scorer.begin(DIALOGUES)().total) == ["nan", "nan", "3.0"]
    assert texts(scores.parts["given"].raw) == ["nan", "nan", "2.0"]
    assert texts(scores.parts["composite"].raw) == ["1.0", "nan", "3.0"]
    assert "no score for 2 of 3 dialogues (the first is number 0: None)" in caplog.text
    assert "no score for 1 of 3 dialogues (the first is number 1: -inf)" in caplog.text
    kept = scores.select([2])
    assert (kept.total, kept.parts["given"].weighted, kept.parts["composite"].raw) == ([3.0], [0.0], [3.0])


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

        @property
        def weighted_parts(self):
            return {self.reward.name: Part(2.0, self.reward)}

    scores = scored(Sum("outer", Sum("inner", Server(1.0))), skip_unscored=True)
    first, second, third = scores.parts["inner"].raw
    assert (first.why, second.why, third) == ("server: no answer", "server: gave no score", 10.0)
    assert (scores.total[2], scores.parts["inner"].weight) == (20.0, 2.0)


def test_a_penalty_of_what_was_cut_is_taken_from_the_total():
    totals, cut = np.array([1.0, 2.0, math.nan]), np.array([False, True, True])
    for penalty, expected in ((0.5, "[1.0, 1.5, nan]"), (0.0, "[1.0, 2.0, nan]")):
        scorer = Scorer(BaseReward(), truncation_penalty=penalty)
        assert str(scorer.subtract_truncation_penalty(totals, cut, np.zeros(len(totals))).tolist()) == expected
    assert Scorer(BaseReward()).truncation_penalty == 0


def test_a_penalty_that_grows_over_the_last_tokens_by_hand():
    """DAPO, eq. 13: at most 10 tokens, of which the last 4 are penalised, whether the reply was cut or not."""
    scorer = Scorer(BaseReward(), None, None, 2.0, 4, 10)
    lengths, cut = np.array([1, 6, 7, 9, 10, 10]), np.array([False, False, False, False, False, True])
    found = scorer.subtract_truncation_penalty(np.ones(6), cut, lengths)
    assert found.tolist() == [1, 1, 0.5, -0.5, -1, -1]


# -- beside other work


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


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_parts_without_a_device_are_computed_beside_and_the_scores_are_the_same():
    text, device = Threaded("text"), Threaded("device", uses_device=True)
    scorer = Scorer(summed(device, text))
    scores = scorer.begin(DIALOGUES)
    assert wait_for(lambda: text.threads)  # at once
    assert not device.threads
    found, same = scores(), scorer.score(DIALOGUES)
    assert device.threads[0] is threading.current_thread() is not text.threads[0]
    assert found.total == same.total
    assert list(found.parts) == ["device", "text"]
    for name in found.parts:
        assert found.parts[name].raw == same.parts[name].raw
        assert found.parts[name].weighted == same.parts[name].weighted
    single = Threaded("device", uses_device=True)
    scores = Scorer(single).begin(DIALOGUES)
    assert not single.threads
    assert scores().total == [7.0, 0.0, 11.0]


def test_with_a_limit_on_its_time_nothing_is_computed_beside():
    text = Threaded("text")
    scores = Scorer(text, timeout_s=60).begin(DIALOGUES)
    assert not wait_for(lambda: text.threads, 0.2)
    assert scores().total == [7.0, 0.0, 11.0]


def test_an_error_beside_is_raised_when_the_scores_are_asked_for():
    scores = Scorer(summed(Threaded("text", error=ZeroDivisionError("no")))).begin(DIALOGUES)
    with pytest.raises(RewardError, match=r"reward 'text' raised ZeroDivisionError: no"):
        scores()


# -- a reward that raises


def line_of(file, words):
    return next(i for i, text in enumerate(Path(file).read_text().splitlines(), 1) if words in text)


def test_an_exception_names_the_users_line():
    class Elsewhere(BaseReward):
        def __call__(self, dialogues):
            return [np.linalg.inv(np.zeros((2, 3)))]  # raises inside numpy

    deep = rf"^reward 'given' raised ValueError: bad word at .*given\.py:{line_of(given.__file__, 'the deepest line')}$"
    with pytest.raises(RewardError, match=deep) as caught:
        scored(Given(ValueError("bad word")))
    assert caught.value.exit_code == 2
    assert isinstance(caught.value.__cause__, ValueError)
    below = rf"'elsewhere' raised LinAlgError: .*test_scoring\.py:{line_of(__file__, 'inside numpy')}$"
    with pytest.raises(RewardError, match=below):
        scored(Elsewhere())
    nested = {"id": "CompositeReward", "args": {"parts": [{"id": "Given", "args": {"value": KeyError("k")}}]}}
    with pytest.raises(RewardError, match=r"^reward 'given' raised KeyError: 'k' at \S+$"):  # told once
        CompositeReward([nested])(DIALOGUES)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (UserError("mend it"), UserError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (SignalExit(143), SignalExit),
        (SystemExit(0), RewardError),
        (BaseException("stop"), RewardError),
        (asyncio.CancelledError(), RewardError),
    ],
)
def test_what_passes_a_reward(error, passes):
    """A signal and an error with words for the user; an exit of the reward's own is an error."""
    for score in (Scorer(Given(error)).score, lambda some: Scorer(Given(error)).begin(some)()):
        with pytest.raises(passes) as caught:
            score(DIALOGUES)
        assert type(caught.value) is passes


# -- a reward that takes too long


class Slow(BaseReward):
    """Blocks in Python or in C, or is quick."""

    name = "slow"

    def __init__(self, how):
        self.how = how

    def __call__(self, dialogues):
        here, there = socket.socketpair()
        if self.how == "sleep":
            time.sleep(600)
        if self.how == "socket":
            here.recv(1)
        if isinstance(self.how, type):
            raise self.how
        there.close()
        here.close()
        return [float(threading.current_thread() is threading.main_thread())] * len(dialogues)


@pytest.mark.parametrize(("how", "line"), [("sleep", "time.sleep(600)"), ("socket", "here.recv(1)")])
def test_a_reward_that_does_not_end_is_left_behind_with_its_stack(how, line, capsys):
    reward = summed(Given(1.0), Slow(how))
    with pytest.raises(RewardTimeout, match=r"reward 'slow' did not finish within") as caught:
        scored(reward, timeout_s=0.2)
    assert (isinstance(caught.value, RunStopped), caught.value.exit_code) == (True, 3)
    for text in (capsys.readouterr().err, "".join(traceback.format_exception(caught.value))):
        assert "MainThread, most recent call last:" in text
        assert line in text


def test_the_limit_is_for_all_parts_together():
    class Third(BaseReward):
        name = "third"

        def __call__(self, dialogues):
            time.sleep(0.2)
            return [0.0] * len(dialogues)

    reward = summed(Third(), Third(), Third())
    with pytest.raises(RewardTimeout):
        scored(reward, timeout_s=0.5)
    assert scored(reward, timeout_s=60).total == [0.0] * 3


def test_within_the_limit_everything_is_as_without():
    assert scored(Slow("quick"), timeout_s=60).total == [0.0] * 3  # in a thread
    assert scored(Slow("quick")).total == [1.0] * 3  # in the caller's own
    for error, expected in (
        (KeyboardInterrupt, KeyboardInterrupt),
        (ValueError, RewardError),
        (TimeoutError, RewardError),
    ):
        with pytest.raises(expected):
            scored(Slow(error), timeout_s=60)


HANGING = """
import re
from rlhf_dialog import user_code
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards import BaseReward, Scorer

class Hang(BaseReward):
    def __call__(self, dialogues):
        re.match('(a*)*b', 'a' * 64)  # never gives up the interpreter's lock

user_code.GRACE = 0.5
Scorer(Hang(), timeout_s=0.2).score([Dialogue(["a"])])
"""


@pytest.mark.slow
def test_a_process_whose_reward_blocks_all_threads_ends():
    done = run_python("-c", HANGING)
    assert done.returncode == 1
    assert "most recent call" in done.stderr
    assert "__call__" in done.stderr


# -- its life in a run


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
    ("method", "value", "words"),
    [
        ("metrics", {"coef": "high"}, "'high' for 'coef'"),
        ("state_dict", {"seen": {1, 2}}, "type set"),
        ("state_dict", [1.0], "returned list"),
    ],
)
def test_what_its_life_may_not_return(method, value, words):
    reward = Price()
    setattr(reward, method, lambda: value)
    with pytest.raises(RewardError, match=f"reward 'price': .*{re.escape(words)}"):
        {"metrics": metrics_of, "state_dict": state_of}[method](reward)
    with pytest.raises(TypeError):
        load_state(reward, [1.0])
