"""Processes: the same numbers, errors with their traceback, and an end when one of them dies."""

import logging
import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from rlhf_dialog.errors import RunStopped
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.environments import NOTHING, EnvironmentFailed, Processes
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, open_host
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from tests.parts.small_domain import small_domain
from tests.parts.toy_environments import Broken

MAKE = partial(ActLevel, small_domain(), 0.3)
POLICY = RandomPolicy(PolicySpec(MAKE().layout.size, len(MAKE().names)))


def sampled(process_num):
    sampler = Sampler(MAKE, 3, 8, open_host(MAKE, 3, 8, process_num))
    try:
        return [episode for _ in range(2) for episode in sampler.sample(POLICY, 101)]
    finally:
        sampler.close()


def plain(episodes):
    return [
        (
            one.dialogue,
            one.start,
            one.total_reward,
            one.actions.tolist(),
            one.observations.tolist(),
            one.masks.tolist(),
            one.info,
        )
        for one in episodes
    ]


@pytest.mark.slow
def test_the_number_of_processes_changes_no_number(caplog):
    alone = plain(sampled(0))
    assert len(alone) > 8
    assert any(row[-1] for row in alone)
    with caplog.at_level(logging.INFO, logger="rlhf_dialog"):
        for process_num in (2, 3, 8):
            assert plain(sampled(process_num)) == alone
    assert "8 dialogues side by side in 3 processes" in caplog.text


@pytest.mark.slow
def test_an_exception_in_a_process_ends_with_its_traceback():
    two = Processes(Broken, 0, 4, process_num=2)
    try:
        two.step([(NOTHING, number) for number in range(4)])
        with pytest.raises(
            EnvironmentFailed, match=r"in process 2 of 2: Broken\.step raised ValueError: broken on purpose\n"
        ) as end:
            two.step([(0, NOTHING)] * 4)
        assert 'raise ValueError("broken on purpose")' in str(end.value)
    finally:
        two.close()


@pytest.mark.slow
def test_a_process_that_dies_stops_the_run_and_ends_the_others():
    two = Processes(MAKE, 0, 2, process_num=2)
    try:
        two.step([(NOTHING, 0), (NOTHING, 1)])
        victim, other = two.workers
        os.kill(other.pid, signal.SIGINT)  # Ctrl-C reaches all of them, and the run decides
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        with pytest.raises(RunStopped, match=rf"process 1 of 2 .*pid {victim.pid}\) has ended by signal 9; .*--resume"):
            two.step([(0, 2), (0, 3)])
        other.send([(NOTHING, NOTHING)])
        assert other.receive()
    finally:
        two.close()
    assert other.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_a_process_that_hangs_stops_the_run(tmp_path):
    hanging = Processes(partial(Hanging, tmp_path / "pipe"), 0, 1, process_num=1, timeout_s=0.5)
    try:
        with pytest.raises(RunStopped, match=r"within 0\.5 seconds \(step_timeout_s\)"):
            hanging.step([(NOTHING, 0)])
    finally:
        hanging.close()


class Hanging(Broken):
    """Waits for a writer that never comes."""

    def __init__(self, pipe):
        self.pipe = pipe

    def reset(self, *, seed=None, options=None):
        os.mkfifo(self.pipe)
        return self.pipe.read_text()


@pytest.mark.slow
def test_a_run_stopped_in_a_process_is_one_here():
    class Stops(Broken):
        def step(self, action):
            raise RunStopped("the logits are not finite")

    one = Processes(Stops, 0, 1, process_num=1)
    one.step([(NOTHING, 3)])
    with pytest.raises(RunStopped, match=r"^the logits are not finite$"):
        one.step([(0, NOTHING)])
    one.close()


@pytest.mark.slow
def test_classes_of_a_script_or_of_a_registered_file_reach_the_process():
    class Mine(Broken):
        """No other process can import it."""

    alone = Processes(lambda: Mine(), 0, 1, process_num=1)
    (turn,) = alone.step([(NOTHING, 3)])
    alone.close()
    assert turn.observation.tolist() == [3, 0]


@pytest.mark.slow
def test_what_a_process_needs_loads_no_torch():
    needed = "rlhf_dialog.task_oriented.policies.sampling.environments, rlhf_dialog.task_oriented.world.act_level"
    program = f"import sys, {needed}; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
