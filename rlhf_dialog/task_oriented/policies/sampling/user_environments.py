"""Act-level environments of the user's own: any class with Gymnasium's `reset` and `step`, by its registered name.

Each dialogue begins with a seed of its own, from the run's seed and its number, since a class need not know of numbers. A call
that takes too long, and a dialogue without an end, are errors that name the class and the method.
"""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from random import Random
from typing import Any

from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.environments.base import is_truth
from rlhf_dialog.errors import USER_CODE_RAISES, RunStopped, SignalExit, UserError
from rlhf_dialog.task_oriented.policies.sampling.vector_env import EnvironmentFailed, EnvWrapper, as_environment_error
from rlhf_dialog.user_code import TimeLimit, ends_the_process, format_line, outside_libraries, run_with_timeout


class UserEnvironment(EnvWrapper):
    """One environment of a class, with limits.

    step_timeout_s: seconds for one call, which then runs in a thread; None: any time
    max_turns: turns after which the class must have ended a dialogue; None: any number
    What else is asked of it, such as `action_masks`, is the environment's. Raises UserError when the class cannot be built, and
    EnvironmentFailed for what it gets wrong.
    """

    def __init__(
        self,
        cls: Callable[..., Any],
        args: dict[str, Any],
        step_timeout_s: float | None = None,
        max_turns: int | None = None,
    ):
        self.class_name = getattr(cls, "__name__", type(cls).__name__)
        self.step_timeout_s = step_timeout_s
        self.max_turns = max_turns
        self.turns = 0
        self.environment: Any = None
        self.environment = self._run_limited("__init__", lambda: cls(**args))
        for method in ("reset", "step"):
            if not callable(getattr(self.environment, method, None)):
                raise UserError(f"{self.class_name}: has no method {method}; a policy needs Gymnasium's reset and step")
        parameters = inspect.signature(self.environment.reset).parameters
        self._takes_options = "options" in parameters or any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.environment, name)

    def reset(self, *, seed: int, options: dict[str, Any]) -> Any:
        """Begin the dialogue of this number, with a seed of its own."""
        self.turns = 0
        arguments: dict[str, Any] = {"seed": Random(f"{seed}/{options['dialogue']}/environment").randrange(2**31)}
        arguments |= {"options": options} if self._takes_options else {}
        return self._run_limited("reset", lambda: self.environment.reset(**arguments))

    def step(self, action: int) -> Any:
        """One turn."""
        self.turns += 1
        answer = self._run_limited("step", lambda: self.environment.step(action))
        is_answer = isinstance(answer, tuple) and len(answer) == 5
        if is_answer and self.turns == self.max_turns and not any(is_truth(end) and end for end in answer[2:4]):
            raise EnvironmentFailed(
                f"{self.class_name}.step has not ended the dialogue after {self.turns} turns (max_turns); return terminated or "
                "truncated as True at its end, or raise max_turns"
            )
        return answer

    def _run_limited(self, method: str, work: Callable[[], Any]) -> Any:
        """What the work returns; exceptions and a call without an end become errors with class, method and line."""
        seconds = self.step_timeout_s
        try:
            with ends_the_process(seconds) if seconds else nullcontext():
                return run_with_timeout(seconds, work) if seconds else work()
        except (UserError, RunStopped, SignalExit):
            raise
        except TimeLimit as late:
            lines = [format_line(frame) for frame in outside_libraries(late.frames)[-1:]]
            raise EnvironmentFailed(
                f"{self.class_name}.{method} did not return within {seconds:g} seconds (step_timeout_s); it was at "
                f"{lines[0] if lines else 'a line of a library'}"
            ) from late
        except USER_CODE_RAISES as error:
            raise as_environment_error(f"{self.class_name}.{method}", error) from error


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
    class_name = getattr(environment, "class_name", type(environment).__name__)
    shape = getattr(getattr(environment, "observation_space", None), "shape", None)
    number = getattr(getattr(environment, "action_space", None), "n", None)
    if not isinstance(shape, tuple) or len(shape) != 1 or number is None:
        raise UserError(
            f"{class_name}: a policy that chooses acts needs an observation_space that is a Box of one dimension, and a Discrete "
            f"action_space; found {getattr(environment, 'observation_space', None)} and "
            f"{getattr(environment, 'action_space', None)}"
        )
    if first := getattr(environment.action_space, "start", 0):
        raise UserError(
            f"{class_name}: its action_space begins with {first}; a policy counts actions from 0: leave out `start`"
        )
    return int(shape[0]), int(number)
