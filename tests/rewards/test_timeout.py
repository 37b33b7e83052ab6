"""A reward without an end is left behind, with its stack."""

import socket
import threading
import time
import traceback
from pathlib import Path

import pytest
from given import DIALOGUES
from processes import run_python

from rlhf_dialog.errors import RunStopped
from rlhf_dialog.rewards import BaseReward, CompositeReward, RewardError, scored
from rlhf_dialog.rewards.scoring import ScoringRules
from rlhf_dialog.rewards.timeout import RewardTimeout, Stacks

pytestmark = pytest.mark.usefixtures("own_rewards")


class Slow(BaseReward):
    """Blocks in Python or in C, or is quick."""

    name = "slow"

    def __init__(self, how):
        self.how = how

    def __call__(self, dialogues):
        here, there = socket.socketpair()
        while self.how == "python":
            pass
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
    return scored(reward, DIALOGUES, ScoringRules(timeout_s=seconds))


@pytest.mark.parametrize("how", ["python", "sleep", "socket"])
def test_a_reward_that_does_not_end_is_left_behind_with_its_stack(how, capsys):
    quick = {"id": "Given", "args": {"value": 1.0}}
    reward = CompositeReward([quick, quick])
    slow = Slow(how)
    reward.parts["slow"] = type(reward.parts["given"])(1.0, slow)
    with pytest.raises(RewardTimeout, match=r"reward 'slow' did not finish within 0\.\d+ seconds") as caught:
        limited(reward)
    slow.how = "quick"
    assert isinstance(caught.value, RunStopped)
    assert caught.value.exit_code == 3
    assert isinstance(caught.value.__cause__, Stacks)
    line = {"python": "while self.how", "sleep": "time.sleep(600)", "socket": "here.recv(1)"}[how]
    for text in (capsys.readouterr().err, "".join(traceback.format_exception(caught.value))):
        assert "MainThread, most recent call last:" in text
        assert "in __call__" in text
        assert line in text or how == "python"


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
    assert scored(Slow("quick"), DIALOGUES).total == [1.0] * 3  # in the caller's own
    with pytest.raises(KeyboardInterrupt):
        limited(Slow("ctrl-c"), 60)
    line = next(
        i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if 'raise ValueError("bad' in text
    )
    with pytest.raises(RewardError, match=rf"reward 'slow' raised ValueError: bad word at .*test_timeout\.py:{line}$"):
        limited(Slow("error"), 60)


HANGING = """
import re, sys, time
from rlhf_dialog import user_code
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards import BaseReward, scored, timeout
from rlhf_dialog.rewards.scoring import ScoringRules

class Hang(BaseReward):
    def __call__(self, dialogues):
        {body}

user_code.GRACE = 0.5
try:
    scored(Hang(), [Dialogue(["a"])], ScoringRules(timeout_s=0.2))
except timeout.RewardTimeout as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.thorough
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
