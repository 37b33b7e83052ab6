"""Dialogues side by side: several environments of one process that are stepped together, and what each of them says.

An order to an environment is a pair of numbers (action, following): make the action, and when the dialogue ends, open the
dialogue `following`. With the action -1 the dialogue `following` is opened at once; -1 as `following` opens none, and a pair
of both is a turn without anything to do. An environment is thus never stepped in vain at the end of a dialogue.
"""

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlhf_dialog.environments.base import REWARD, SUCCESS, is_reward, is_truth, says_success
from rlhf_dialog.errors import USER_CODE_RAISES, RunStopped, SignalExit, UserError
from rlhf_dialog.task_oriented.policies.base import Features, Masks

Order = tuple[int, int]
Make = Callable[[], Any]
NOTHING = -1


@dataclass(frozen=True)
class EnvAnswer:
    """What an environment answers to an order.

    observation (D,) and mask (A,): what the policy sees next, of the dialogue that was opened where one ended; None without
    reward, terminated, truncated, info: of the action
    last_observation (D,): of the dialogue that has ended
    """

    observation: Features | None
    mask: Masks | None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    last_observation: Features | None = None
    info: dict[str, Any] = field(default_factory=dict)


class EnvironmentFailed(UserError):
    """An environment raised, or returned something that the protocol does not allow."""


class EnvWrapper:
    """An environment in place of another one, whose class is `class_name` so in errors."""

    class_name: str


class VectorEnv:
    """`num_envs` environments of this process; `make` builds one. `seed` is that of all their dialogues."""

    def __init__(self, make: Make, seed: int, num_envs: int):
        self.seed, self.environments = seed, [make() for _ in range(num_envs)]

    def step(self, orders: Iterable[Order]) -> list[EnvAnswer]:
        """One order for each environment. Raises EnvironmentFailed, with the class, the method and the traceback."""
        pairs = zip(self.environments, orders, strict=True)
        return [self._execute(environment, *order) for environment, order in pairs]

    def close(self) -> None:
        """Close the environments that can be closed."""
        for environment in self.environments:
            getattr(environment, "close", lambda: None)()

    def _execute(self, environment: Any, action: int, following: int) -> EnvAnswer:
        if action == NOTHING:
            return EnvAnswer(None, None) if following == NOTHING else self._open(environment, following)
        answer = _call(environment, "step", action)
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise _wrong(environment, "step", answer, "(observation, reward, terminated, truncated, info)")
        observation, reward, terminated, truncated, info = answer
        if not is_reward(reward):
            raise _wrong(environment, "step", reward, f"a reward that is {REWARD}")
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not is_truth(value):
                raise _wrong(environment, "step", value, f"True or False as {name}")
        _check_info(environment, "step", info)
        ended = bool(terminated or truncated)
        if ended and not says_success(info):
            raise _wrong(environment, "step", info["success"], SUCCESS)
        if ended and following == NOTHING:
            then = EnvAnswer(None, None)
        elif ended:
            then = self._open(environment, following)
        else:
            then = _read_answer(environment, "step", observation, info)
        last = _vector(environment, "step", observation) if ended else None
        final_info = {key: value for key, value in info.items() if key != "action_mask"} if ended else {}
        return EnvAnswer(
            then.observation, then.mask, float(reward), bool(terminated), bool(truncated), last, final_info
        )

    def _open(self, environment: Any, dialogue: int) -> EnvAnswer:
        answer = _call(environment, "reset", seed=self.seed, options={"dialogue": dialogue})
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise _wrong(environment, "reset", answer, "(observation, info)")
        return _read_answer(environment, "reset", *answer)


def _call(environment: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    try:
        return getattr(environment, method)(*args, **kwargs)
    except (UserError, RunStopped, SignalExit):
        raise
    except USER_CODE_RAISES as error:
        raise as_environment_error(f"{_name(environment)}.{method}", error) from error


def as_environment_error(where: str, error: BaseException) -> EnvironmentFailed:
    """The error that an environment's exception becomes, with its traceback; `where` is class and method."""
    text = "".join(traceback.format_exception(error))
    return EnvironmentFailed(f"{where} raised {type(error).__name__}: {error}\n{text}")


def _name(environment: Any) -> str:
    return environment.class_name if isinstance(environment, EnvWrapper) else type(environment).__name__


def _wrong(environment: Any, method: str, value: Any, expected: str) -> EnvironmentFailed:
    return EnvironmentFailed(f"{_name(environment)}.{method} returned {value!r:.200}; return {expected}")


def _check_info(environment: Any, method: str, info: Any) -> None:
    if not isinstance(info, dict):
        raise _wrong(environment, method, info, "an info that is a dict")


def _vector(environment: Any, method: str, observation: Any) -> Features:
    """The observation, (D,), as a copy, since an environment may use its array again."""
    space = getattr(environment, "observation_space", None)
    shape = getattr(space, "shape", None)
    try:
        vector = np.array(observation, dtype=np.float32)
    except (TypeError, ValueError):
        raise _wrong(environment, method, observation, "an observation that is a vector of numbers") from None
    if vector.ndim != 1 or shape not in (None, vector.shape):
        expected = "one dimension" if shape is None else f"the shape {shape} of its observation_space"
        raise _wrong(environment, method, observation, f"an observation of {expected}; this one has {vector.shape}")
    if not np.isfinite(vector).all():
        raise _wrong(environment, method, observation, "an observation of finite numbers")
    if not _lies_in(space, observation, vector):
        raise _wrong(environment, method, observation, f"an observation of its observation_space {space}")
    return vector


def _lies_in(space: Any, observation: Any, vector: Features) -> bool:
    """Whether the declared space contains it, of whatever type its numbers are; a space that cannot say so contains all."""
    contains, kind = getattr(space, "contains", None), getattr(space, "dtype", None) or np.float32
    if contains is None:
        return True
    exact = np.array(observation).astype(kind)
    return bool(contains(exact)) and (exact.dtype.kind == "f" or bool((exact == vector).all()))


def _read_answer(environment: Any, method: str, observation: Any, info: Any) -> EnvAnswer:
    """The observation and the mask: `info["action_mask"]`, else `action_masks()`, else every action is allowed."""
    _check_info(environment, method, info)
    mask, size = info.get("action_mask"), getattr(getattr(environment, "action_space", None), "n", None)
    if mask is None and (masks := getattr(environment, "action_masks", None)):
        mask = _call(environment, "action_masks") if callable(masks) else masks
    if mask is None and size is None:
        raise _wrong(environment, method, info, "info['action_mask'], or give the class an action_space (Discrete)")
    try:
        array = np.ones(int(size), dtype=np.bool_) if mask is None else np.array(mask)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        array = np.array(None)
    if array.dtype.kind != "b" and (array.dtype.kind not in "iu" or ((array != 0) & (array != 1)).any()):
        raise _wrong(environment, method, mask, "a mask that is a vector of True and False, or of 1 and 0")
    mask = array.astype(np.bool_)
    if mask.ndim != 1 or not mask.any() or size not in (None, len(mask)):
        wanted = "" if size is None else f", and has the {size} actions of its action_space"
        raise _wrong(environment, method, mask, f"a mask that allows one action or more{wanted}")
    return EnvAnswer(_vector(environment, method, observation), mask)
