"""A world of acts as a Gymnasium environment: observations are vectors, actions are numbered and may be masked."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.task_oriented.world.act_world import SUCCESS_REWARD, ActWorld

Observation = NDArray[np.float32]


class GymnasiumWorld(ActWorld[Observation], gymnasium.Env[Observation, np.int64]):
    """An `ActWorld` whose `_observe` hands the actions that make sense to `_allow`; its `_declare` says the spaces."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as in Gymnasium

    def __init__(
        self, max_turns: int, masked: bool, success_reward: float = SUCCESS_REWARD, failure_reward: float = 0.0
    ):
        super().__init__(max_turns, success_reward, failure_reward)
        self.masked = masked

    def _declare(self, num_features: int, names: tuple[str, ...]) -> None:
        """The spaces, and the names of the actions."""
        self.names = names
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (num_features,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(names))

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """`ActWorld.reset`; a seed that is not given comes from Gymnasium's generator."""
        gymnasium.Env.reset(self, seed=seed)
        return super().reset(seed, options)

    def action_masks(self) -> NDArray[np.bool_]:
        """(A,), True where an action makes sense now; the name is sb3-contrib's."""
        return self.mask

    def _draw_seed(self) -> int:
        return int(self.np_random.integers(2**31))

    def _allow(self, mask: NDArray[np.bool_]) -> None:
        self.mask = mask if self.masked else np.ones_like(mask)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.mask} | super()._info()
