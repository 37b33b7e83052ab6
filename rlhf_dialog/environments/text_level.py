"""Any text environment as a `gymnasium.Env`, for learners and vector environments that know Gymnasium."""

import inspect
from typing import Any

from rlhf_dialog.environments.base import NO_LIMITS, Environment, Limits, answer, reset_environment
from rlhf_dialog.environments.spaces import Utterance, gymnasium


class TextLevel(gymnasium.Env[str, str]):
    """Observations and actions are texts: what the user says, and what the policy replies.

    environment: what has `reset` and `step` (`base.Environment`); `options` reach a `reset` that takes them
    limits: how long it may take for a call

    Raises UserError when the environment raises, hangs, or returns something else.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as in Gymnasium

    def __init__(self, environment: Environment, limits: Limits = NO_LIMITS):
        self.environment, self.limits = environment, limits
        self.observation_space, self.action_space = Utterance(), Utterance()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin a dialogue; the same seed begins the same one."""
        super().reset(seed=seed)
        takes = inspect.signature(self.environment.reset).parameters
        return reset_environment(
            self.environment, seed, self.limits, {"options": options} if "options" in takes else {}
        )

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Say the reply, and hear the user."""
        return answer(self.environment, action, self.limits)
