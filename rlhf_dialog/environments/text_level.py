"""Any text environment as a `gymnasium.Env`, and the space of its texts."""

import inspect
import string
from typing import Any

import gymnasium

from rlhf_dialog.environments.base import NO_LIMITS, Environment, EpisodeLimits, answer, reset_environment
from rlhf_dialog.errors import UserError

LONGEST_SAMPLE = 40
LETTERS = string.ascii_letters + string.digits + " .,?!äöüß"


class Utterance(gymnasium.Space[str]):
    """Every str, of any length and in any script; a sample is a short one.

    `gymnasium.vector` hands texts over with `shared_memory=False`; with shared memory it refuses this space.
    """

    def __init__(self, seed: int | None = None):
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: a text is not an array."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Up to 40 characters. Raises UserError for a mask or probabilities, which texts do not have."""
        if mask is not None or probability is not None:
            raise UserError("Utterance.sample: texts have neither mask nor probability; leave them out")
        length = int(self.np_random.integers(LONGEST_SAMPLE + 1))
        return "".join(LETTERS[i] for i in self.np_random.integers(len(LETTERS), size=length))

    def contains(self, x: Any) -> bool:
        """Whether `x` is a str."""
        return isinstance(x, str)

    def __repr__(self) -> str:
        return "Utterance()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Utterance)


class TextLevel(gymnasium.Env[str, str]):
    """Any text environment as a `gymnasium.Env`. Raises UserError when it raises, hangs, or returns something else.

    environment: what has `reset` and `step` (`base.Environment`); `options` reach a `reset` that takes them
    limits: how long it may take for a call
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as in Gymnasium

    def __init__(self, environment: Environment, limits: EpisodeLimits = NO_LIMITS):
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
