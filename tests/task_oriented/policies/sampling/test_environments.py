import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

from rlhf_dialog.environments.base import EpisodeLimits
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.environments import (
    NOTHING,
    Processes,
    UserEnvironment,
    VectorEnv,
    read_sizes,
)
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from rlhf_dialog.task_oriented.runs.training_world import open_world
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from tests.parts import own_environments
from tests.parts.small_domain import small_domain
from tests.parts.toy_environments import Broken, Counted


def test_an_order_opens_a_dialogue_makes_an_action_or_waits_and_where_one_ends_the_next_is_opened():
    two = VectorEnv(Counted, seed=4, num_envs=2)
    opened, waiting = two.step([(NOTHING, 6), (NOTHING, NOTHING)])
    assert (opened.observation.tolist(), opened.mask.tolist(), opened.reward) == ([6, 0], [True] * 3, 0.0)
    assert (waiting.observation, waiting.mask) == (None, None)
    assert two.environments[0].seed == 4
    moved, opened = two.step([(2, 8), (NOTHING, 1)])
    assert (moved.observation.tolist(), moved.reward, moved.terminated, moved.info) == ([6, 1], 6.0, False, {})
    assert opened.observation.tolist() == [1, 0]
    one = VectorEnv(Counted, seed=0, num_envs=1)
    one.step([(NOTHING, 5)])
    (turn,) = one.step([(1, 7)])
    assert (turn.terminated, turn.truncated, turn.reward) == (False, True, 5.0)
    assert (turn.last_observation.tolist(), turn.observation.tolist()) == ([5, 1], [7, 0])
    assert turn.info == {"actions": [1], "success": False}
    one.step([(0, 9)])
    one.step([(0, 9)])
    (turn,) = one.step([(0, NOTHING)])
    assert (turn.truncated, turn.observation, turn.last_observation.tolist()) == (True, None, [7, 3])


def returning(method, value):
    return type("Odd", (Counted,), {method: lambda self, *args, **kwargs: value})


MASK = {"action_mask": np.ones(3, dtype=bool)}
STEP = (np.zeros(2), 0.0, False, False, MASK)  # a right answer


def stepping(**parts):
    """An environment whose steps have these parts in place of right ones."""
    names = ("observation", "reward", "terminated", "truncated", "info")
    return returning("step", tuple(parts.get(name, right) for name, right in zip(names, STEP, strict=True)))


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (returning("reset", np.zeros(2)), r"reset returned array.*\(observation, info\)"),
        (returning("reset", (np.zeros(2), None)), "reset returned None; return an info"),
        (returning("reset", (np.zeros(2), {"action_mask": [2, 1, 1]})), r"reset returned \[2, 1, 1\]; .*mask"),
        (returning("reset", ("hello", MASK)), "reset returned 'hello'; return an observation"),
        (returning("reset", (np.zeros((2, 1)), MASK)), r"the shape \(2,\).* \(2, 1\)"),
        (returning("step", (np.zeros(2), 0.0, False, MASK)), r"step returned \(.*\(observation, reward, term"),
        (stepping(reward=np.nan), "step returned the reward nan; return a finite number"),
        (stepping(terminated=True, info=None), "returned None; return an info"),
        (stepping(info={"action_mask": np.zeros(3, int)}), "allows one action or more"),
        (stepping(info={"action_mask": np.ones(4, int)}), "the 3 actions of its action_space"),
        (stepping(info={"action_mask": [[1], [1, 1]]}), r"returned \[\[1\], \[1, 1\]\]; .*mask"),
        (stepping(info={"action_mask": [0.5, 1.0, 1.0]}), "True and False, or of 1 and 0"),
        (stepping(observation=np.full(2, np.nan)), "finite numbers"),
    ],
)
def test_what_an_environment_gets_wrong_names_its_class_and_method(environment, said):
    def two_orders():
        odd = VectorEnv(environment, seed=0, num_envs=1)
        return [odd.step([order]) for order in ((NOTHING, 2), (0, 3))]

    with pytest.raises(UserError, match=rf"(?s)^environment Odd: .*{said}"):
        two_orders()


def test_without_a_mask_in_the_info_the_environments_method_is_asked_and_without_it_all_is_allowed():
    class Bare:
        action_space = spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            return np.zeros(1), {}

    class Masked(Bare):
        def action_masks(self):
            return [True, False]

    class Spaceless:
        reset = Bare.reset

    found = [VectorEnv(cls, 0, 1).step([(NOTHING, 0)])[0].mask.tolist() for cls in (Bare, Masked)]
    assert found == [[True, True], [True, False]]
    with pytest.raises(UserError, match=r"info\['action_mask'\], or give the class an action_space"):
        VectorEnv(Spaceless, 0, 1).step([(NOTHING, 0)])


POLICY = RandomPolicy(PolicySpec(2, 2))


def test_each_dialogue_has_a_seed_of_its_own_and_the_same_one_again():
    make = partial(UserEnvironment, own_environments.Guess, {}, EpisodeLimits(max_turns=3))
    episodes = run_dialogues(POLICY, make, 7, range(40))
    right = [episode.observations[0, 0] for episode in episodes]
    assert 8 < sum(right) < 32
    backwards = run_dialogues(POLICY, make, 7, range(39, -1, -1), num_envs=3)
    assert [one.observations[0, 0] for one in backwards] == right[::-1]
    assert [one.observations[0, 0] for one in run_dialogues(POLICY, make, 8, range(40))] != right
    assert all(one.success == one.info["success"] for one in episodes)


def test_arguments_reach_the_class_and_fit_and_everything_else_is_the_environments():
    own = UserEnvironment(own_environments.Guess, {"num_turns": 1})
    assert (own.num_turns, read_sizes(own)) == (1, (2, 2))
    own.reset(seed=1, options={"dialogue": 0})
    assert own.step(1 - own.right)[2:4] == (False, True)
    with pytest.raises(UserError, match=r"environment: wrong arguments for Guess: .*number"):
        open_world({"environment": {"id": "Guess", "args": {"number": 3}}, "max_turns": 3})
    with pytest.raises(UserError, match="object: a policy that chooses acts needs an observation_space"):
        read_sizes(object())
    with pytest.raises(UserError, match="dict: it has no method reset"):
        UserEnvironment(dict, {})
    with pytest.raises(UserError, match=r"__init__ did not return within 0\.05 seconds"):
        UserEnvironment(lambda: time.sleep(30), {}, EpisodeLimits(step_timeout_s=0.05))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Endless", r"Endless: step has not ended the dialogue after 3 replies \(max_turns\)"),
        ("Hangs", r"Hangs: step did not return within 0\.3 seconds .*it was at \S*own_environments\.py:\d"),
        ("Gues", "environment: unknown environment 'Gues'; did you mean 'Guess'"),
    ],
)
def test_what_it_gets_wrong_names_class_and_method(name, said):
    limits = {"max_turns": 3, "step_timeout_s": 0.3 if name.startswith("Hangs") else None}

    def sample():
        world = open_world({"environment": {"id": name, "args": {}}, **limits})
        Sampler(world.make, 0, 2).sample(POLICY, 20)

    with pytest.raises(UserError, match=said):
        sample()


MAKE = partial(ActLevel, small_domain(), 0.3)
RANDOM = RandomPolicy(PolicySpec(MAKE().layout.size, len(MAKE().names)))


def sampled(process_num):
    host = Processes(MAKE, 3, 8, process_num) if process_num else None
    with closing(Sampler(MAKE, 3, 8, host)) as sampler:
        episodes = [episode for _ in range(2) for episode in sampler.sample(RANDOM, 101)]
    return [
        (one.dialogue, one.start, one.total_reward, one.actions.tolist(), one.observations.tolist(), one.info)
        for one in episodes
    ]


@pytest.mark.slow
def test_the_number_of_processes_changes_no_number():
    alone = sampled(0)
    assert len(alone) > 8
    assert any(row[-1] for row in alone)
    for process_num in (2, 3):
        assert sampled(process_num) == alone


@pytest.mark.slow
def test_an_exception_in_a_process_ends_with_its_traceback():
    with closing(Processes(Broken, 0, 4, process_num=2)) as two:
        two.step([(NOTHING, number) for number in range(4)])
        with pytest.raises(UserError, match=r"^in process 2 of 2: Traceback[^$]*ValueError: broken on purpose"):
            two.step([(0, NOTHING)] * 4)


@pytest.mark.slow
def test_a_process_that_dies_stops_the_run_and_ends_the_others():
    with closing(Processes(MAKE, 0, 2, process_num=2)) as two:
        two.step([(NOTHING, 0), (NOTHING, 1)])
        victim, other = two.workers
        os.kill(other.pid, signal.SIGINT)  # Ctrl-C reaches all of them, and the run decides
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        with pytest.raises(RunStopped, match=rf"process 1 of 2 .*pid {victim.pid}\) has ended by signal 9; .*--resume"):
            two.step([(0, 2), (0, 3)])
        other.send([(NOTHING, NOTHING)])
        assert other.receive()
    assert other.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_classes_of_a_script_or_of_a_registered_file_reach_the_process():
    class Mine(Broken):
        """No other process can import it."""

    with closing(Processes(lambda: Mine(), 0, 1, process_num=1)) as alone:
        (turn,) = alone.step([(NOTHING, 3)])
    assert turn.observation.tolist() == [3, 0]


@pytest.mark.slow
def test_what_a_process_needs_loads_no_torch():
    needed = "rlhf_dialog.task_oriented.policies.sampling.environments, rlhf_dialog.task_oriented.world.act_level"
    program = f"import sys, {needed}; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
