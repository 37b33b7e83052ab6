"""Environments at act level whose right policy, or whose every number, is known in closed form."""

from random import Random

import numpy as np
from gymnasium import spaces

WORTH = np.array([[3.0, 2.0, 1.0, 0.0], [0.0, 3.0, 2.0, 1.0], [1.0, 0.0, 3.0, 2.0]])  # of an action under a colour
NUM_TURNS = 3


class Colours:
    """Three turns; each shows one of three colours and forbids one of four actions. What the choices were worth is paid at
    the end. The right policy is the best allowed action under the colour (`best`)."""

    observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        self.rng, self.turn, self.paid = Random(f"{seed}/{options['dialogue']}"), 0, 0.0
        return self._seen()

    def step(self, action):
        assert self.mask[action], "a forbidden action"
        self.paid += WORTH[self.colour, action]
        self.turn += 1
        ended = self.turn == NUM_TURNS
        observation, info = self._seen()
        return observation, self.paid if ended else 0.0, ended, False, info

    def _seen(self):
        self.colour, forbidden = self.rng.randrange(3), self.rng.randrange(4)
        self.mask = np.arange(4) != forbidden
        return np.eye(3, dtype=np.float32)[self.colour], {"action_mask": self.mask}


def best(observations, masks):
    """The right actions (N,)."""
    return np.where(masks, WORTH[observations.argmax(axis=1)], -1.0).argmax(axis=1)


class Counted:
    """Dialogue n has n % 5 + 1 turns, ends by the user where n is even, by the turn limit where it is odd; turn t of it pays
    n + t / 10. An observation is [n, t]. The actions that it was given are in the info at the end."""

    observation_space = spaces.Box(0.0, 1e9, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        self.seed, self.dialogue, self.actions = seed, options["dialogue"], []
        return self._observation(), {"action_mask": np.ones(3, dtype=bool)}

    def step(self, action):
        reward = self.dialogue + len(self.actions) / 10
        self.actions.append(int(action))
        ended = len(self.actions) == self.dialogue % 5 + 1
        is_even = self.dialogue % 2 == 0
        info = {"action_mask": np.ones(3, dtype=bool), "actions": self.actions, "success": is_even}
        return self._observation(), reward, ended and is_even, ended and not is_even, info

    def _observation(self):
        return np.array([self.dialogue, len(self.actions)], dtype=np.float32)


class Broken(Counted):
    """Raises in dialogue 3."""

    def step(self, action):
        if self.dialogue == 3:
            raise ValueError("broken on purpose")
        return super().step(action)
