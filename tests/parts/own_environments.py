"""Registered by `--register`: environments at act level as users write them, right and wrong in each way."""

import time

import numpy as np
from gymnasium import Env, spaces

from rlhf_dialog import EnvironmentFactory
from rlhf_dialog.task_oriented.world.act_level import ActLevel


@EnvironmentFactory.register("Guess")
class Guess(Env):
    """Three turns at most; the first number of the observation, drawn from the seed, is the right action."""

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, num_turns=3):
        self.num_turns = num_turns

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.right, self.turn = int(self.np_random.integers(2)), 0
        return self._seen(), {}

    def step(self, action):
        self.turn += 1
        right = int(action) == self.right
        return self._seen(), float(right) - 0.1, right, self.turn == self.num_turns, {"success": right}

    def _seen(self):
        return np.array([self.right, self.turn / 10], np.float32)


@EnvironmentFactory.register("Hurried")
class Hurried(ActLevel):
    """The restaurants with a user of five turns."""

    def __init__(self, error_rate=0.0):
        super().__init__("restaurant", error_rate, max_turns=5)


@EnvironmentFactory.register("Endless")
class Endless(Guess):
    def step(self, action):
        return self._seen(), 0.0, False, False, {}


@EnvironmentFactory.register("Hangs")
class Hangs(Guess):
    def step(self, action):
        time.sleep(30)
