"""Orders to environments: no step is wasted at the end of a dialogue, and what an environment gets wrong has its name."""

import numpy as np
import pytest
from gymnasium import spaces

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.sampling.environments import NOTHING, EnvironmentFailed, VectorEnv
from tests.parts.toy_environments import Broken, Counted


def test_an_order_opens_a_dialogue_or_makes_an_action_or_waits():
    two = VectorEnv(Counted, seed=4, num_envs=2)
    opened, waiting = two.step([(NOTHING, 6), (NOTHING, NOTHING)])
    assert (opened.observation.tolist(), opened.mask.tolist(), opened.reward) == ([6, 0], [True] * 3, 0.0)
    assert (waiting.observation, waiting.mask) == (None, None)
    assert two.environments[0].seed == 4
    moved, opened = two.step([(2, 8), (NOTHING, 1)])
    assert (moved.observation.tolist(), moved.reward, moved.terminated, moved.info) == ([6, 1], 6.0, False, {})
    assert opened.observation.tolist() == [1, 0]


def test_where_a_dialogue_ends_the_next_one_is_opened_in_the_same_step():
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


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (returning("reset", np.zeros(2)), r"Odd\.reset returned array.*return \(observation, info\)"),
        (returning("reset", (np.zeros(2), None)), r"Odd\.reset returned None; return an info that is a dict"),
        (
            returning("step", (np.zeros(2), 0.0, False, MASK)),
            r"Odd\.step returned \(.*return \(observation, reward, term",
        ),
        (returning("step", (np.zeros(2), np.nan, False, False, MASK)), r"Odd\.step returned nan; return a reward"),
        (
            returning("step", (np.zeros(2), 0.0, False, False, {"action_mask": np.zeros(3, int)})),
            "return a mask that allows one action or more",
        ),
        (
            returning("step", (np.zeros(2), 0.0, False, False, {"action_mask": np.ones(4, int)})),
            "and has the 3 actions of its action_space",
        ),
        (
            returning("step", (np.zeros(2), 0.0, False, False, {"action_mask": [[1], [1, 1]]})),
            r"returned \[\[1\], \[1, 1\]\]; return a mask that is a vector",
        ),
        (returning("step", (np.zeros(2), 0.0, np.zeros(2), False, MASK)), "return True or False as terminated"),
        (returning("step", (np.zeros(2), 0.0, True, 0.5, MASK)), "return True or False as truncated"),
        (
            returning("step", (np.zeros(2), 0.0, True, False, None)),
            r"Odd\.step returned None; return an info that is a",
        ),
        (
            returning("step", (np.zeros(2), 1e7, False, False, MASK)),
            "returned 10000000.0; return a reward that is a finite",
        ),
        (
            returning("step", (np.zeros(2), 0.0, True, False, MASK | {"success": "no"})),
            r"Odd\.step returned 'no'; return success in its last info as True or False",
        ),
        (
            returning("step", (np.zeros(2), 0.0, False, True, MASK | {"success": np.nan})),
            "step returned nan; return success",
        ),
        (
            returning("step", (np.zeros(2), 0.0, False, False, {"action_mask": [0.5, 1.0, 1.0]})),
            "return a mask that is a vector of True and False, or of 1 and 0",
        ),
        (
            returning("reset", (np.zeros(2), {"action_mask": [2, 1, 1]})),
            r"Odd\.reset returned \[2, 1, 1\]; return a mask",
        ),
        (returning("reset", (np.zeros(2), {"action_mask": ["x", "", "x"]})), "return a mask that is a vector of True"),
        (
            returning("step", (np.array([-1e6, 0.0]), 0.0, False, False, MASK)),
            r"Odd\.step returned array.*; return an observation of its observation_space Box\(0\.0",
        ),
        (returning("step", (np.full(2, np.nan), 0.0, False, False, MASK)), "return an observation of finite numbers"),
        (returning("reset", ("hello", MASK)), r"Odd\.reset returned 'hello'; return an observation that is a vector"),
        (
            returning("reset", (np.zeros((2, 1)), MASK)),
            r"of the shape \(2,\) of its observation_space; this one has \(2, 1\)",
        ),
    ],
)
def test_what_an_environment_gets_wrong_names_its_class_and_method(environment, said):
    def two_orders():
        odd = VectorEnv(environment, seed=0, num_envs=1)
        return [odd.step([order]) for order in ((NOTHING, 2), (0, 3))]

    with pytest.raises(EnvironmentFailed, match=said):
        two_orders()


def test_an_exception_comes_with_its_traceback():
    broken = VectorEnv(Broken, seed=0, num_envs=1)
    broken.step([(NOTHING, 3)])
    with pytest.raises(
        UserError, match=r"Broken\.step raised ValueError: broken on purpose\nTraceback[^$]*line \d+, in step"
    ):
        broken.step([(0, 4)])


def test_without_a_mask_in_the_info_the_environments_method_is_asked_and_without_it_all_is_allowed():
    class Bare:
        action_space = spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            return np.zeros(1), {}

    class Masked(Bare):
        def action_masks(self):
            return [True, False]

    found = [VectorEnv(cls, 0, 1).step([(NOTHING, 0)])[0].mask.tolist() for cls in (Bare, Masked)]
    assert found == [[True, True], [True, False]]


@pytest.mark.parametrize(
    ("space", "inside", "outside"),
    [
        (spaces.Box(0.0, 0.1, (2,), np.float64), [0.1, 0.0], [0.1, 0.11]),
        (spaces.Box(0.0, 0.1, (2,), np.float32), [0.1, 0.0], [0.1, 0.11]),
        (spaces.MultiBinary(2), [1, 0], [0.5, 0.0]),
        (spaces.MultiBinary(2), np.array([1.0, 0.0]), [2, 0]),
        (spaces.MultiDiscrete([3, 300]), [2, 299], [2, 300]),
    ],
)
def test_an_observation_lies_in_the_space_that_its_class_declares(space, inside, outside):
    def shown(observation):
        cls = returning("reset", (observation, MASK))
        cls.observation_space = space
        return VectorEnv(cls, 0, 1).step([(NOTHING, 0)])[0].observation.tolist()

    assert shown(inside) == pytest.approx(list(inside))
    with pytest.raises(
        EnvironmentFailed, match=r"Odd\.reset returned .*; return an observation of its observation_space"
    ):
        shown(outside)
