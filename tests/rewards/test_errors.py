"""The error of a reward that fails: it names the reward and the line that its author can correct."""

import socket
import threading
import time
import traceback
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rlhf_dialog.errors import RunStopped, SignalExit, UserError
from rlhf_dialog.rewards import BaseReward, CompositeReward, RewardError, score_dialogues
from rlhf_dialog.rewards.errors import RewardTimeout, Stacks
from rlhf_dialog.rewards.scoring import ScoringRules, score_in_background
from tests.parts import given
from tests.parts.given import DIALOGUES, Given
from tests.parts.processes import run_python

pytestmark = pytest.mark.usefixtures("own_rewards")


def test_an_exception_names_the_line_of_the_users_file():
    text = Path(given.__file__).read_text()
    line = next(i for i, line in enumerate(text.splitlines(), 1) if "the deepest line" in line)
    with pytest.raises(RewardError) as caught:
        score_dialogues(Given(ValueError("bad word")), DIALOGUES)
    assert str(caught.value).startswith("reward 'given' raised ValueError: bad word at ")
    assert str(caught.value).endswith(f"given.py:{line}")
    assert caught.value.exit_code == 2
    assert isinstance(caught.value.__cause__, ValueError)
    assert "raise_deep" in "".join(traceback.format_exception(caught.value))


def test_an_exception_below_the_users_file_names_the_users_line():
    class Elsewhere(BaseReward):
        def __call__(self, dialogues):
            return [np.linalg.inv(np.zeros((2, 3)))]  # raises inside numpy

    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "inside numpy" in text)
    with pytest.raises(RewardError, match=rf"'elsewhere' raised LinAlgError: .*test_errors\.py:{line}$"):
        score_dialogues(Elsewhere(), DIALOGUES)


def test_a_users_error_passes_unchanged():
    with pytest.raises(UserError, match=r"^mend it$") as caught:
        score_dialogues(Given(UserError("mend it")), DIALOGUES)
    assert not isinstance(caught.value, RewardError)


def test_a_nested_exception_is_told_once():
    nested = {"id": "CompositeReward", "args": {"parts": [{"id": "Given", "args": {"value": KeyError("k")}}]}}
    with pytest.raises(RewardError, match=r"^reward 'given' raised KeyError: 'k' at \S+$"):
        CompositeReward([nested])(DIALOGUES)


def test_a_reward_that_exits_is_an_error_of_its_own():
    for score in (score_dialogues, lambda *given: score_in_background(*given)()):
        with pytest.raises(RewardError, match=r"^reward 'given' raised SystemExit: 0 at \S+$"):
            score(Given(SystemExit(0)), DIALOGUES)


@pytest.mark.parametrize("end", [KeyboardInterrupt, partial(SignalExit, 143)])
def test_signals_pass_a_reward(end):
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        score_dialogues(Given(end()), DIALOGUES)


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
        if self.how == "error":
            raise ValueError("bad word")
        if self.how == "ctrl-c":
            raise KeyboardInterrupt
        there.close()
        here.close()
        return [float(threading.current_thread() is threading.main_thread())] * len(dialogues)


def limited(reward, seconds=0.2):
    return score_dialogues(reward, DIALOGUES, ScoringRules(timeout_s=seconds))


@pytest.mark.parametrize("how", ["sleep", "socket"])
def test_a_reward_that_does_not_end_is_left_behind_with_its_stack(how, capsys):
    quick = {"id": "Given", "args": {"value": 1.0}}
    reward = CompositeReward([quick, quick])
    slow = Slow(how)
    reward.parts["slow"] = type(reward.parts["given"])(1.0, slow)
    with pytest.raises(RewardTimeout, match=r"reward 'slow' did not finish within") as caught:
        limited(reward)
    slow.how = "quick"
    assert isinstance(caught.value, RunStopped)
    assert caught.value.exit_code == 3
    assert isinstance(caught.value.__cause__, Stacks)
    line = {"sleep": "time.sleep(600)", "socket": "here.recv(1)"}[how]
    for text in (capsys.readouterr().err, "".join(traceback.format_exception(caught.value))):
        assert "MainThread, most recent call last:" in text
        assert "in __call__" in text
        assert line in text


def test_the_limit_is_for_all_parts_together():
    class Third(BaseReward):
        name = "third"

        def __call__(self, dialogues):
            time.sleep(0.2)
            return [0.0] * len(dialogues)

    reward = CompositeReward([{"id": "Given"}] * 3)
    for part in reward.parts.values():
        part.reward = Third()
    with pytest.raises(RewardTimeout):
        limited(reward, 0.5)
    assert limited(reward, 60).total == [0.0] * 3


def test_within_the_limit_everything_is_as_without():
    assert limited(Slow("quick"), 60).total == [0.0] * 3  # in a thread
    assert score_dialogues(Slow("quick"), DIALOGUES).total == [1.0] * 3  # in the caller's own
    for error, expected in (("ctrl-c", KeyboardInterrupt), ("error", RewardError)):
        with pytest.raises(expected):
            limited(Slow(error), 60)


HANGING = """
import re, sys, time
from rlhf_dialog import user_code
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards import BaseReward, errors, score_dialogues
from rlhf_dialog.rewards.scoring import ScoringRules

class Hang(BaseReward):
    def __call__(self, dialogues):
        {body}

user_code.GRACE = 0.5
try:
    score_dialogues(Hang(), [Dialogue(["a"])], ScoringRules(timeout_s=0.2))
except errors.RewardTimeout as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("time.sleep(3600)", 3),
        ("re.match('(a*)*b', 'a' * 64)", 1),
    ],  # the second one never gives up the interpreter's lock
)
def test_a_process_with_a_hanging_reward_ends(body, code):
    done = run_python("-c", HANGING.format(body=body))
    assert done.returncode == code
    assert "most recent call" in done.stderr
    assert "__call__" in done.stderr
