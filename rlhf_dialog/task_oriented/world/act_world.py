"""The episode of every world of acts: the user begins, then system and user take turns until a goodbye or the limit."""

from random import Random, SystemRandom
from typing import Any, Generic, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.environments.base import is_text
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.error_channel import NULL
from rlhf_dialog.user_code import as_user_error

MAX_TURNS = 25
TURN_REWARD, SUCCESS_REWARD = -1.0, 20.0
GREETING = [Act("hello")]
Seen = TypeVar("Seen")
Observation = NDArray[np.float32]


class ActWorld(Generic[Seen]):
    """One dialogue is one episode, one step is one turn of the system and the user's answer.

    A step is worth -1, and the last one `success_reward` or `failure_reward` more. A dialogue depends on (seed, dialogue)
    and the actions only: each part draws from a `_stream` of its own. A world sets `user`, and says what the methods below do.
    """

    greeting = GREETING  # what the system has said before the user's first turn
    user: Any

    def __init__(self, max_turns: int, success_reward: float = SUCCESS_REWARD, failure_reward: float = 0.0):
        if max_turns < 1:
            raise UserError(f"max_turns is {max_turns}; give 1 or more")
        self.max_turns, self.success_reward, self.failure_reward = max_turns, success_reward, failure_reward
        self._seed: int | None = None
        self.dialogue = -1

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Seen, dict[str, Any]]:
        """Begin a dialogue; the user has spoken.

        `seed` begins with dialogue 0, without it the next one follows; `options["dialogue"]` is the number of another
        one, and `options["goal"]` a goal of your own (`goals.parse_goal`). Raises UserError for a goal that cannot be used.
        """
        options = options or {}
        if seed is not None or self._seed is None:
            self._seed, self.dialogue = self._draw_seed() if seed is None else seed, -1
        self.dialogue = int(options.get("dialogue", self.dialogue + 1))
        rng = self._stream("user")
        goal = self._draw_goal(options, rng)
        self.first_goal = goal.copy()
        self._begin(goal)
        self.system_acts: list[list[Act]] = []
        self.user_acts = [acts_from("user", self.user, "begin", goal, rng)]
        return self._observe(self.greeting, None, False), self._info()

    def step(self, action: Any) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        """Say the action's acts, and hear the user. At the end `info` has goal, acts of both sides, success and turns."""
        acts = self._system_turn(action)
        self.system_acts.append(acts)
        answer = acts_from("user", self.user, "answer", acts)
        self.user_acts.append(answer)
        terminated = any(act.intent == "bye" for act in answer)
        truncated = not terminated and len(self.system_acts) >= self.max_turns
        is_over = terminated or truncated
        observation = self._observe(acts, action, is_over)
        info, reward = self._info(), TURN_REWARD
        if is_over:
            info |= self._finish(terminated)
            reward += self.success_reward if info["success"] else self.failure_reward
        return observation, reward, terminated, truncated, info

    def _stream(self, part: str) -> Random:
        return Random(f"{self._seed}/{self.dialogue}/{part}")

    def _finish(self, terminated: bool) -> dict[str, Any]:
        """Judge the dialogue; what `info` has more at its end."""
        goal = self._final_goal()
        verdict = self._verdict(goal)
        return {
            "goal": goal.as_dict() if isinstance(goal, type(self.first_goal)) else goal,
            "first_goal": self.first_goal.as_dict(),
            "user_acts": self.user_acts,
            "system_acts": self.system_acts,
            **verdict,
            "success": terminated and verdict["success"],
            "turns": len(self.system_acts),
        }

    def _draw_seed(self) -> int:
        return SystemRandom().randrange(2**31)

    def _draw_goal(self, options: dict[str, Any], rng: Random) -> Any:
        """`options["goal"]`, or a goal drawn."""
        raise NotImplementedError

    def _begin(self, goal: Any) -> None:
        """Make tracker and actions ready for another dialogue."""

    def _system_turn(self, action: Any) -> list[Act]:
        """The acts of an action."""
        raise NotImplementedError

    def _observe(self, system_acts: list[Act], action: Any, is_over: bool) -> Seen:
        """What the policy sees after a turn of both; before the first one `action` is None."""
        raise NotImplementedError

    def _info(self) -> dict[str, Any]:
        return {"dialogue": self.dialogue}

    def _final_goal(self) -> Any:
        """The goal that the dialogue is judged by: the user's now. Raises UserError for a user that keeps none."""
        goal = getattr(self.user, "goal", None)
        if not isinstance(goal, type(self.first_goal)):
            raise UserError(
                f"user {type(self.user).__name__}: its goal is {goal!r} after answer; keep a {type(self.first_goal).__name__}"
            )
        return goal

    def _verdict(self, goal: Any) -> dict[str, Any]:
        """`success`, which counts where the user said goodbye, and what else is measured."""
        raise NotImplementedError


def acts_from(role: str, part: Any, method: str, *args: Any) -> list[Act]:
    """What a part, a function or its method, answers to what it heard; without acts it is `null`.

    Raises UserError, with class and method, when it raises, or answers something else than a list of acts.
    """
    name = getattr(part, "__qualname__", type(part).__name__)
    call = part if method == role else getattr(part, method, None)
    if not callable(call):
        raise UserError(f"{role} {name}: it has no method {method}; define begin(goal, rng) and answer(system_acts)")
    with as_user_error(f"{role} {name}: {method}"):
        acts = call(*args)
    if not isinstance(acts, list) or not all(
        isinstance(act, Act) and all(map(is_text, (act.intent, act.slot, act.value))) for act in acts
    ):
        raise UserError(f"{role} {name}: {method} returned {acts!r}; return a list of Act, of texts each")
    return acts or [NULL]


class GymnasiumWorld(ActWorld[Observation], gymnasium.Env[Observation, np.int64]):
    """An `ActWorld` whose `_observe` hands the actions that make sense to `_allow`; its `_declare` says the spaces."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as in Gymnasium

    def __init__(
        self, max_turns: int, masked: bool, success_reward: float = SUCCESS_REWARD, failure_reward: float = 0.0
    ):
        super().__init__(max_turns, success_reward, failure_reward)
        self.masked = masked

    def _declare(self, num_features: int, names: tuple[str, ...]) -> None:
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
