"""Environments at act level, side by side in this process or in others; those of the user's own get limits.

An order to an environment is a pair of numbers (action, following): make the action, and when the dialogue ends, open the
dialogue `following`; so no step is wasted at the end. The action -1 opens `following` at once; -1 as `following` opens none.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from rlhf_dialog.environments import base
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.task_oriented.policies.base import Features, Masks
from rlhf_dialog.workers import LOST, Worker, WorkerFailed

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


class VectorEnv:
    """`num_envs` environments of this process; `make` builds one. `seed` is that of all their dialogues."""

    def __init__(self, make: Make, seed: int, num_envs: int):
        self.seed, self.environments = seed, [make() for _ in range(num_envs)]

    def step(self, orders: Iterable[Order]) -> list[EnvAnswer]:
        """One order for each environment. Raises UserError, with class and method, for a wrong answer."""
        pairs = zip(self.environments, orders, strict=True)
        return [self._execute(environment, *order) for environment, order in pairs]

    def close(self) -> None:
        for environment in self.environments:
            getattr(environment, "close", lambda: None)()

    def _execute(self, environment: Any, action: int, following: int) -> EnvAnswer:
        if action == NOTHING:
            return EnvAnswer(None, None) if following == NOTHING else self._open(environment, following)
        answer = environment.step(action)
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise _wrong(environment, "step", answer, "(observation, reward, terminated, truncated, info)")
        observation, reward, terminated, truncated, info = answer
        if not isinstance(info, dict):
            raise _wrong(environment, "step", info, "an info that is a dict")
        base.check_outcome(_name(environment), reward, terminated, truncated, info)
        if not (terminated or truncated):
            then = _read_answer(environment, "step", observation, info)
            return EnvAnswer(then.observation, then.mask, float(reward))
        last = _vector(environment, "step", observation)
        then = EnvAnswer(None, None) if following == NOTHING else self._open(environment, following)
        info = {key: value for key, value in info.items() if key != "action_mask"}
        return EnvAnswer(then.observation, then.mask, float(reward), bool(terminated), bool(truncated), last, info)

    def _open(self, environment: Any, dialogue: int) -> EnvAnswer:
        answer = environment.reset(seed=self.seed, options={"dialogue": dialogue})
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise _wrong(environment, "reset", answer, "(observation, info)")
        return _read_answer(environment, "reset", *answer)


def _name(environment: Any) -> str:
    return type(environment.environment if isinstance(environment, UserEnvironment) else environment).__name__


def _wrong(environment: Any, method: str, value: Any, expected: str) -> UserError:
    return UserError(f"environment {_name(environment)}: {method} returned {value!r:.200}; return {expected}")


def _vector(environment: Any, method: str, observation: Any) -> Features:
    """The observation, (D,), as a copy, since an environment may use its array again."""
    try:
        vector = np.array(observation, dtype=np.float32)
    except (TypeError, ValueError):
        raise _wrong(environment, method, observation, "an observation that is a vector of numbers") from None
    shape = getattr(getattr(environment, "observation_space", None), "shape", None)
    if vector.ndim != 1 or shape not in (None, vector.shape):
        expected = "one dimension" if shape is None else f"the shape {shape} of its observation_space"
        raise _wrong(environment, method, observation, f"an observation of {expected}; this one has {vector.shape}")
    if not np.isfinite(vector).all():
        raise _wrong(environment, method, observation, "an observation of finite numbers")
    return vector


def _read_answer(environment: Any, method: str, observation: Any, info: Any) -> EnvAnswer:
    """The observation and the mask: `info["action_mask"]`, else `action_masks()`, else every action is allowed."""
    if not isinstance(info, dict):
        raise _wrong(environment, method, info, "an info that is a dict")
    mask, size = info.get("action_mask"), getattr(getattr(environment, "action_space", None), "n", None)
    if mask is None and hasattr(environment, "action_masks"):
        mask = environment.action_masks()
    if mask is None and size is None:
        raise _wrong(environment, method, info, "info['action_mask'], or give the class an action_space (Discrete)")
    try:
        array = np.array(np.ones(int(size or 0), dtype=np.bool_) if mask is None else mask)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in "biu" or array.ndim != 1 or ((array != 0) & (array != 1)).any():
        raise _wrong(environment, method, mask, "a mask that is a vector of True and False, or of 1 and 0")
    if not array.any() or size not in (None, len(array)):
        wanted = "" if size is None else f", and has the {size} actions of its action_space"
        raise _wrong(environment, method, mask, f"a mask that allows one action or more{wanted}")
    return EnvAnswer(_vector(environment, method, observation), array.astype(np.bool_))


class UserEnvironment:
    """One environment of a class of the user's own with Gymnasium's `reset` and `step`, with limits.

    What else is asked of it, such as `action_masks`, is the environment's. Raises UserError, with class and method, for what a
    call raises, and when it takes too long.
    """

    def __init__(self, cls: Callable[..., Any], args: dict[str, Any], limits: base.EpisodeLimits = base.NO_LIMITS):
        self.limits, self.turns = limits, 0
        who = f"environment {getattr(cls, '__name__', cls)}: __init__"
        self.environment: Any = base.call_limited(who, cls, limits.step_timeout_s, lambda: cls(**args))
        for method in ("reset", "step"):
            base.check_method(self.environment, method)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.environment, name)

    def reset(self, *, seed: int, options: dict[str, Any]) -> Any:
        """Begin the dialogue of this number, with a seed of its own, since a class need not know of numbers."""
        self.turns = 0
        own_seed = Random(f"{seed}/{options['dialogue']}/environment").randrange(2**31)
        work = partial(self.environment.reset, seed=own_seed, options=options)
        return base.call(self.environment, "reset", self.limits, work)

    def step(self, action: int) -> Any:
        """One turn."""
        self.turns += 1
        answer = base.call(self.environment, "step", self.limits, partial(self.environment.step, action))
        is_answer = isinstance(answer, tuple) and len(answer) == 5
        if is_answer and not any(base.is_truth(end) and end for end in answer[2:4]):
            base.check_turns(self.environment, self.turns, self.limits)
        return answer


def read_sizes(environment: Any) -> tuple[int, int]:
    """The number of features and of actions. Raises UserError for other spaces than vectors and numbers of actions."""
    seen, chosen = (getattr(environment, f"{what}_space", None) for what in ("observation", "action"))
    shape, number = getattr(seen, "shape", None), getattr(chosen, "n", None)
    if not isinstance(shape, tuple) or len(shape) != 1 or number is None or getattr(chosen, "start", 0) != 0:
        raise UserError(
            f"environment {_name(environment)}: a policy that chooses acts needs an observation_space that is a Box of one "
            f"dimension, and a Discrete action_space that begins with 0; found {seen} and {chosen}"
        )
    return int(shape[0]), int(number)


class Processes:
    """`num_envs` environments in `process_num` processes, with the methods of `VectorEnv`. Which process hosts a dialogue changes
    no number.

    make: may be of the user's script. The processes end with `close`, and with this one; no signal reaches them.
    """

    def __init__(self, make: Make, seed: int, num_envs: int, process_num: int):
        self.num_envs, self.each = num_envs, -(-num_envs // process_num)
        begin = partial(_host, CloudpickleWrapper(make), seed, self.each)
        self.workers = [Worker(begin, runs_script=True) for _ in range(-(-num_envs // self.each))]
        for number in range(len(self.workers)):
            self._answer(number)

    def step(self, orders: Sequence[Order]) -> list[EnvAnswer]:
        """One order for each environment. Raises UserError with the traceback of a process, RunStopped when one has ended."""
        padded = [*orders, *[(NOTHING, NOTHING)] * (self.each * len(self.workers) - len(orders))]
        for number, worker in enumerate(self.workers):
            with suppress(*LOST):  # it has ended, which its answer shows
                worker.send(padded[number * self.each : (number + 1) * self.each])
        answers = [self._answer(number) for number in range(len(self.workers))]
        return [turn for turns in answers for turn in turns][: self.num_envs]

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()

    def _answer(self, number: int) -> Any:
        worker, which = self.workers[number], f"process {number + 1} of {len(self.workers)}"
        try:
            return worker.receive()
        except WorkerFailed as failure:
            raise UserError(f"in {which}: {failure.report}") from None
        except LOST:
            raise RunStopped(
                f"{which} that hosts dialogues (pid {worker.pid}) {worker.how_it_ended()}; the finished iterations are kept, "
                "go on with --resume"
            ) from None


def _host(make: Make, seed: int, num_envs: int) -> Any:
    return VectorEnv(make, seed, num_envs).step
