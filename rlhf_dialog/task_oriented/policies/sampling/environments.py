"""Environments at act level, side by side in this process or in others; those of the user's own get limits.

An order to an environment is a pair of numbers (action, following): make the action, and when the dialogue ends, open the
dialogue `following`; so no step is wasted at the end. The action -1 opens `following` at once; -1 as `following` opens none.
"""

import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.environments.base import REWARD, SUCCESS, is_reward, is_truth, says_success
from rlhf_dialog.errors import USER_CODE_RAISES, RunStopped, SignalExit, UserError
from rlhf_dialog.task_oriented.policies.base import Features, Masks
from rlhf_dialog.user_code import TimeLimit, ends_the_process, format_line, outside_libraries, run_with_timeout
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
        """Close the environments that can be closed."""
        for environment in self.environments:
            getattr(environment, "close", lambda: None)()

    def _execute(self, environment: Any, action: int, following: int) -> EnvAnswer:
        if action == NOTHING:
            return EnvAnswer(None, None) if following == NOTHING else self._open(environment, following)
        answer = environment.step(action)
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise _wrong(environment, "step", answer, "(observation, reward, terminated, truncated, info)")
        observation, reward, terminated, truncated, info = answer
        if not is_reward(reward):
            raise _wrong(environment, "step", reward, f"a reward that is {REWARD}")
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not is_truth(value):
                raise _wrong(environment, "step", value, f"True or False as {name}")
        if not isinstance(info, dict):
            raise _wrong(environment, "step", info, "an info that is a dict")
        if not (terminated or truncated):
            then = _read_answer(environment, "step", observation, info)
            return EnvAnswer(then.observation, then.mask, float(reward))
        if not says_success(info):
            raise _wrong(environment, "step", info["success"], SUCCESS)
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
    return environment.class_name if isinstance(environment, UserEnvironment) else type(environment).__name__


def _wrong(environment: Any, method: str, value: Any, expected: str) -> UserError:
    return UserError(f"{_name(environment)}.{method} returned {value!r:.200}; return {expected}")


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

    step_timeout_s: seconds for one call, which then runs in a thread; None: any time
    max_turns: turns after which the class must have ended a dialogue; None: any number
    What else is asked of it, such as `action_masks`, is the environment's. Raises UserError, with class and method, for what a
    call raises, and when it takes too long.
    """

    def __init__(
        self,
        cls: Callable[..., Any],
        args: dict[str, Any],
        step_timeout_s: float | None = None,
        max_turns: int | None = None,
    ):
        self.class_name = getattr(cls, "__name__", type(cls).__name__)
        self.step_timeout_s, self.max_turns, self.turns = step_timeout_s, max_turns, 0
        self.environment: Any = None
        self.environment = self._run_limited("__init__", lambda: cls(**args))
        for method in ("reset", "step"):
            if not callable(getattr(self.environment, method, None)):
                raise UserError(f"{self.class_name}: has no method {method}; a policy needs Gymnasium's reset and step")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.environment, name)

    def reset(self, *, seed: int, options: dict[str, Any]) -> Any:
        """Begin the dialogue of this number, with a seed of its own, since a class need not know of numbers."""
        self.turns = 0
        own_seed = Random(f"{seed}/{options['dialogue']}/environment").randrange(2**31)
        return self._run_limited("reset", lambda: self.environment.reset(seed=own_seed, options=options))

    def step(self, action: int) -> Any:
        """One turn."""
        self.turns += 1
        answer = self._run_limited("step", lambda: self.environment.step(action))
        is_answer = isinstance(answer, tuple) and len(answer) == 5
        if is_answer and self.turns == self.max_turns and not any(is_truth(end) and end for end in answer[2:4]):
            raise UserError(
                f"{self.class_name}.step has not ended the dialogue after {self.turns} turns (max_turns); return terminated or "
                "truncated as True at its end, or raise max_turns"
            )
        return answer

    def _run_limited(self, method: str, work: Callable[[], Any]) -> Any:
        where, seconds = f"{self.class_name}.{method}", self.step_timeout_s
        try:
            with ends_the_process(seconds) if seconds else nullcontext():
                return run_with_timeout(seconds, work) if seconds else work()
        except (UserError, RunStopped, SignalExit):
            raise
        except TimeLimit as late:
            lines = [format_line(frame) for frame in outside_libraries(late.frames)[-1:]]
            raise UserError(
                f"{where} did not return within {seconds:g} seconds (step_timeout_s); it was at "
                f"{lines[0] if lines else 'a line of a library'}"
            ) from late
        except USER_CODE_RAISES as error:
            text = "".join(traceback.format_exception(error))
            raise UserError(f"{where} raised {type(error).__name__}: {error}\n{text}") from error


def user_environment(
    name: str, args: dict[str, Any], step_timeout_s: float | None, max_turns: int | None
) -> Callable[[], UserEnvironment]:
    """Builds environments of the class that `EnvironmentFactory` knows by this name; can be sent to another process.

    Raises UserError for an unknown name or wrong arguments.
    """
    if problem := EnvironmentFactory.problem(name, args):
        raise UserError(f"environment: {problem}")
    return partial(UserEnvironment, EnvironmentFactory.find(name), args, step_timeout_s, max_turns)


def read_sizes(environment: Any) -> tuple[int, int]:
    """The number of features and of actions. Raises UserError for other spaces than vectors and numbers of actions."""
    seen, chosen = (getattr(environment, f"{what}_space", None) for what in ("observation", "action"))
    shape, number = getattr(seen, "shape", None), getattr(chosen, "n", None)
    if not isinstance(shape, tuple) or len(shape) != 1 or number is None or getattr(chosen, "start", 0) != 0:
        raise UserError(
            f"{_name(environment)}: a policy that chooses acts needs an observation_space that is a Box of one dimension, and a "
            f"Discrete action_space that begins with 0; found {seen} and {chosen}"
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
        """End the processes at once."""
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
