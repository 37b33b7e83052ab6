"""METEOR in several processes: the same scores and errors."""

import os
import pickle
import signal
import subprocess

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import CompositeReward, Meteor, processes, score_dialogues
from rlhf_dialog.rewards.processes import RewardProcesses, free_cores
from rlhf_dialog.rewards.scoring import Scorer, ScoringRules
from tests.parts.divided import MANY, started
from tests.parts.processes import HANGING, start_python


@pytest.fixture(scope="module")
def two():
    """Two processes that are ready."""
    both = started()
    yield both
    both.close()


def test_scores_are_those_of_one_process_bit_for_bit(two):
    expected = score_dialogues(Meteor("off"), MANY).total
    assert two.scores(Meteor("off"), MANY) == expected
    assert score_dialogues(Meteor("off"), MANY, ScoringRules(processes=two)).total == expected
    assert len(set(expected)) > 3


def test_what_stays_in_this_process(two):
    """Too few dialogues, and a class of the user's, which may compare them."""
    assert two.scores(Meteor("off"), MANY[:7]) is None
    assert two.scores(type("Own", (Meteor,), {})("off"), MANY) is None
    assert two.are_ready


def test_before_they_are_ready_nobody_waits_for_them(monkeypatch):
    idle = RewardProcesses(4)
    assert idle.scores(Meteor("off"), MANY) is None
    monkeypatch.setattr(RewardProcesses, "_greet", lambda self: released.acquire())
    released = processes.threading.Semaphore(0)
    idle.consider(1.0, 1.0)
    assert idle.scores(Meteor("off"), MANY) is None
    released.release()
    idle.close()


def test_an_error_is_the_one_of_a_single_process():
    both, without = started(), [*MANY[1:], Dialogue(["Hi ."], "no reference")]
    messages = []
    for rules in (ScoringRules(processes=both), ScoringRules()):
        with pytest.raises(UserError) as caught:
            score_dialogues(Meteor("off"), without, rules)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert not both.are_ready


def test_without_one_of_them_the_run_goes_on_alone(caplog):
    both = started()
    os.kill(both._workers[0].pid, signal.SIGKILL)
    assert both.scores(Meteor("off"), MANY) is None
    assert "the processes that share it are not used any more, because of" in caplog.text
    assert not both.are_ready


def test_wordnet_is_read_again_in_the_other_process(two, wordnet_folder):
    cars = [Dialogue(["Hi ."], "a car", "an auto")] * 10
    reward = Meteor("require")
    expected = score_dialogues(reward, cars).total
    assert two.scores(reward, cars) == expected
    assert expected[0] > score_dialogues(Meteor("off"), cars).total[0]
    assert pickle.loads(pickle.dumps(Meteor("off"))).wordnet is None


@pytest.mark.parametrize(
    ("limit", "seconds", "starts"),
    [(2, 1.01, True), (2, 1.0, False), (1, 5.0, False), (0, 5.0, False), (40, 9.0, True)],
)
def test_they_start_when_a_tenth_of_the_iteration_goes_to_meteor(monkeypatch, limit, seconds, starts):
    begun = []
    monkeypatch.setattr(processes, "Worker", lambda *_, **_settings: begun.append(1))
    monkeypatch.setattr(RewardProcesses, "_greet", lambda self: None)
    reward = CompositeReward([{"id": "Meteor", "args": {"meteor_wordnet": "off"}}, {"id": "LengthMatch"}])
    scores = score_dialogues(reward, MANY)
    for name, part in scores.parts.items():
        part.seconds = seconds if name.startswith("meteor") else 9.0
    several = RewardProcesses(limit)
    for _ in range(2):  # they start once
        Scorer(reward, ScoringRules(processes=several)).watch(scores, 10.0)
        assert len(begun) == (min(limit, 16) if starts else 0)


@pytest.mark.parametrize(
    ("cores", "quota", "threads", "ranks", "free"),
    [
        (2, "max 100000", 2, 1, 0),  # a laptop whose cores all compute
        (8, "max 100000", 2, 1, 6),
        (16, "max 100000", 1, 1, 15),  # one thread gives work to a GPU
        (16, "max 100000", 1, 8, 1),
        (64, "400000 100000", 1, 1, 3),  # a container
        (8, "", 1, 2, 3),
        (2, "50000 100000", 1, 1, 0),
    ],
)
def test_free_cores(monkeypatch, tmp_path, cores, quota, threads, ranks, free):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(processes, "QUOTA", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert free_cores(threads, ranks) == free


GOES_ON = """
import signal
from tests.parts.divided import MANY, started
from rlhf_dialog.rewards import Meteor
signal.signal(signal.SIGINT, lambda *_: None)
processes = started(2)
print("ready", flush=True)
input()
print(processes.scores(Meteor("off"), MANY) is not None)
"""


def test_ctrl_c_does_not_reach_them_so_that_a_run_can_finish_its_iteration():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    run = start_python("-c", GOES_ON, **pipes, start_new_session=True)
    assert run.stdout.readline() == "ready\n"
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    assert run.communicate("go on\n", timeout=HANGING) == ("True\n", "")
