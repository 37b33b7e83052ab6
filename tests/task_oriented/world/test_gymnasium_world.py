"""What a world of acts adds for Gymnasium: spaces, masks, seeds."""

import numpy as np
import pytest

from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.gymnasium_world import GymnasiumWorld


class Silent:
    """A user without words, and its goal at once."""

    def begin(self, goal, rng):
        self.goal = goal
        return []

    def answer(self, system_acts):
        return []


class Small(GymnasiumWorld):
    """Three actions, of which the second one makes no sense."""

    def __init__(self, masked):
        super().__init__(2, masked)
        self.user = Silent()
        self._declare(4, ("a", "b", "c"))

    def _draw_goal(self, options, rng):
        self.drawn = rng.random()
        return {}

    def _system_turn(self, action):
        return [Act(self.names[action])]

    def _observe(self, system_acts, action, is_over):
        self._allow(np.array([True, False, True]))
        return np.zeros(4, np.float32)


@pytest.mark.parametrize(("masked", "expected"), [(True, [True, False, True]), (False, [True, True, True])])
def test_masks_are_told_and_may_be_turned_off(masked, expected):
    world = Small(masked)
    _, info = world.reset(seed=0)
    assert info["action_mask"].tolist() == world.action_masks().tolist() == expected
    assert world.step(0)[4]["action_mask"].tolist() == expected


def test_a_seed_that_is_not_given_comes_from_gymnasiums_generator():
    draws = []
    for _ in range(2):
        world = Small(True)
        world.np_random = np.random.default_rng(5)
        world.reset()
        draws.append(world.drawn)
    assert draws[0] == draws[1]
