"""Rewards that several processes compute: the same scores and errors, and no process is left."""

import math
import os
import pickle
import signal
import subprocess

import pytest
from divided import MANY, Digits, Faulty, Odd, Where, started
from processes import HANGING, start_python

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards import Meteor, RewardError, processes, scored
from rlhf_dialog.rewards.processes import RewardProcesses, free_cores, is_divisible
from rlhf_dialog.rewards.scoring import Scorer, ScoringRules
from rlhf_dialog.rewards.timeout import RewardTimeout


@pytest.fixture(scope="module")
def two():
    """Two processes that are ready."""
    found = started()
    yield found
    found.close()


def error_of(reward, rules):
    with pytest.raises(RewardError) as caught:
        scored(reward, MANY, rules)
    return str(caught.value)


def test_the_dialogues_are_divided_in_their_order(two):
    scores = scored(Where(), MANY, ScoringRules(processes=two)).total
    assert scores[:5] == [float(two._workers[0].pid)] * 5
    assert scores[5:] == [float(two._workers[1].pid)] * 5


def test_scores_are_those_of_one_process_bit_for_bit(two):
    for reward in (Digits(), Meteor("off")):
        assert scored(reward, MANY, ScoringRules(processes=two)).total == scored(reward, MANY).total
        assert len(set(scored(reward, MANY).total)) > 3
    changed = Digits()
    changed.factor = 0.3  # a copy is of this call
    assert scored(changed, MANY, ScoringRules(processes=two)).total == scored(changed, MANY).total
    assert math.isnan(scored(Faulty("none"), MANY, ScoringRules(True, processes=two)).total[-1])
    assert two.are_ready


@pytest.mark.parametrize(
    ("reward", "dialogues"), [(Odd(), MANY), (Where(), MANY[:7]), (type("Own", (Where,), {})(), MANY), (Where(), [])]
)
def test_what_stays_in_this_process(two, reward, dialogues):
    assert scored(reward, dialogues, ScoringRules(processes=two)).total == [float(os.getpid())] * len(dialogues)
    assert two.are_ready


def test_a_class_of_the_script_itself_is_not_divided(monkeypatch):
    assert is_divisible(Where())
    monkeypatch.setattr(Where, "__module__", "__main__")
    assert not is_divisible(Where())


def test_before_they_are_ready_nobody_waits_for_them(monkeypatch):
    idle = RewardProcesses(4)
    assert scored(Where(), MANY, ScoringRules(processes=idle)).total[0] == os.getpid()
    monkeypatch.setattr(RewardProcesses, "_greet", lambda self: released.acquire())
    released = processes.threading.Semaphore(0)
    idle.consider(1.0, 1.0)
    assert scored(Where(), MANY, ScoringRules(processes=idle)).total[0] == os.getpid()
    released.release()
    idle.close()


@pytest.mark.parametrize(
    "how", ["raises", *(pytest.param(x, marks=pytest.mark.thorough) for x in ("too few", "no list", "exits")), "none"]
)
def test_an_error_is_the_one_of_a_single_process(how, caplog):
    """Also when `values` was computed elsewhere first: the line in the message is the reward's."""
    found = started()
    assert error_of(Faulty(how), ScoringRules(processes=found)) == error_of(Faulty(how), ScoringRules())
    assert found.are_ready == (how == "none")  # a value that is wrong in itself arrives as it is
    found.close()


def test_without_one_of_them_the_run_goes_on_alone(caplog):
    found = started()
    assert scored(Faulty("dies"), MANY, ScoringRules(processes=found)).total == [float(len(d.response)) for d in MANY]
    assert "reward 'faulty': the processes that share it are not used any more, because of EOFError" in caplog.text
    assert scored(Where(), MANY, ScoringRules(processes=found)).total[0] == os.getpid()


def test_a_process_that_hangs_ends_at_the_limit_with_its_stack(capfd):
    found = started()
    children = list(found._workers)
    with pytest.raises(RewardTimeout, match=r"reward 'faulty' did not finish within 0\.5 seconds"):
        scored(Faulty("hangs"), MANY, ScoringRules(timeout_s=0.5, processes=found))
    assert children[1].wait(HANGING) != 0
    found.close()
    assert all(child.wait(HANGING) is not None for child in children)
    error = capfd.readouterr().err
    assert "Timeout" in error  # faulthandler's word, of the process
    assert "divided.py" in error


def test_wordnet_is_read_again_in_the_other_process(two, wordnet_folder):
    cars = [Dialogue(["Hi ."], "a car", "an auto")] * 10
    reward = Meteor("require")
    expected = scored(reward, cars).total
    assert scored(reward, cars, ScoringRules(processes=two)).total == expected
    assert two.are_ready
    assert expected[0] > scored(Meteor("off"), cars).total[0]
    assert pickle.loads(pickle.dumps(Meteor("off"))).wordnet is None


# -- when


@pytest.mark.parametrize(
    ("limit", "seconds", "starts"),
    [(2, 1.01, True), (2, 1.0, False), (1, 5.0, False), (0, 5.0, False), (40, 9.0, True)],
)
def test_they_start_when_a_tenth_of_the_iteration_goes_to_the_reward(monkeypatch, limit, seconds, starts):
    begun = []
    monkeypatch.setattr(processes, "Worker", lambda *_, **_settings: begun.append(1))
    monkeypatch.setattr(RewardProcesses, "_greet", lambda self: None)
    scores = scored(Digits(), MANY)
    scores.parts["digits"].seconds = seconds
    found = RewardProcesses(limit)
    Scorer(Digits(), ScoringRules(processes=found)).watch(scores, 10.0)
    assert len(begun) == (min(limit, 16) if starts else 0)
    Scorer(Digits(), ScoringRules(processes=found)).watch(scores, 10.0)
    assert len(begun) == (min(limit, 16) if starts else 0)  # once


def test_a_reward_that_is_not_divisible_starts_none():
    found = RewardProcesses(8)
    Scorer(Odd(), ScoringRules(processes=found)).watch(scored(Odd(), MANY), 1e-9)
    assert not found._workers


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


# -- the end

RUN = """
import sys, time
from divided import MANY, Faulty, started
from rlhf_dialog.rewards.processes import RewardProcesses
processes = started(2)
print("ready", flush=True)
if sys.argv[1] == "busy":
    processes.values(Faulty("hangs"), "__call__", MANY, None)
time.sleep(0 if sys.argv[1] == "quick" else 600)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("state", "signum"),
    [
        ("quick", 0),
        ("idle", signal.SIGINT),
        ("busy", signal.SIGTERM),
        ("busy", signal.SIGKILL),
        ("busy", signal.SIGINT),
    ],
)
def test_no_process_outlives_the_run(state, signum):
    """Each of them holds the writing end of the run's stderr, so that its end is the end of all."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    run = start_python("-c", RUN, state, **pipes)
    assert run.stdout.readline() == "ready\n"
    if signum:
        run.send_signal(signum)
    tracebacks = run.stderr.read().count("Traceback")
    assert tracebacks == (1 if signum == signal.SIGINT else 0)  # of the run, not of the others
    assert run.wait(HANGING) == -signum
    run.stdout.close()
    run.stderr.close()


GOES_ON = """
import signal
from divided import MANY, Where, started
signal.signal(signal.SIGINT, lambda *_: None)
processes = started(2)
print("ready", flush=True)
input()
print(processes.values(Where(), "__call__", MANY, None) is not None)
"""


def test_ctrl_c_does_not_reach_them_so_that_a_run_can_finish_its_iteration():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    run = start_python("-c", GOES_ON, **pipes, start_new_session=True)
    assert run.stdout.readline() == "ready\n"
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    assert run.communicate("go on\n", timeout=HANGING) == ("True\n", "")
