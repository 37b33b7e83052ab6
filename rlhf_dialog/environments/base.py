"""The protocol of dialogue environments, how one is built and called: each of its mistakes is an error that names its class."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Protocol, TypeVar

import numpy as np

from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.user_code import TimeLimit, as_user_error, ends_the_process, find_user_line, run_with_timeout

T = TypeVar("T")
LARGEST_REWARD = 1e6
REWARD = "a finite number from -1e6 to 1e6"
SUCCESS = "success in its last info as True or False, or leave it out"


def is_truth(value: Any) -> bool:
    """Whether it is True, False, 0, 1, and NumPy's; not an array, a text or a probability."""
    return isinstance(value, bool | np.bool_) or (isinstance(value, Integral) and int(value) in (0, 1))


def is_reward(value: Any) -> bool:
    """Whether it is a number that can be learned from."""
    number: Any = value if isinstance(value, Real) else math.nan
    return bool(abs(number) <= LARGEST_REWARD)


def says_success(info: Mapping[str, Any]) -> bool:
    """Whether the last info of a dialogue says `success` as a truth, or says nothing of it."""
    return isinstance(info.get("success", False), bool | np.bool_)


def is_text(value: Any) -> bool:
    """Whether it is a text without half characters (lone surrogates), which no tokenizer and no file takes.

    >>> is_text("Grüße 😀"), is_text("cut " + chr(0xD83D))
    (True, False)
    """
    try:
        return isinstance(value, str) and bool(value.encode() or True)
    except UnicodeEncodeError:
        return False


Step = tuple[str, float, bool, bool, dict[str, Any]]


@dataclass(frozen=True)
class EpisodeLimits:
    """What an environment may take; numbers above 0.

    step_timeout_s: seconds for one call of `reset` or `step`, which then runs in a thread; None: any time
    max_turns: replies in one dialogue, after which the environment must have ended it; None: any number
    """

    step_timeout_s: float | None = None
    max_turns: int | None = 1000


NO_LIMITS = EpisodeLimits(None, None)


class Environment(Protocol):
    """The policy's partner in a dialogue. One dialogue is one episode, one step is one reply of the policy.

    Any class with these two methods is an environment; no base class is needed. The tuples are those of Gymnasium.

    >>> class Twice:
    ...     def reset(self, seed=None):
    ...         self.replies = 0
    ...         return "Which day suits you ?", {}
    ...
    ...     def step(self, reply):
    ...         self.replies += 1
    ...         return "Which hour ?", float("day" in reply), self.replies == 2, False, {}
    >>> environment = Twice()
    >>> environment.reset(seed=7)
    ('Which day suits you ?', {})
    >>> environment.step("Friday .")
    ('Which hour ?', 1.0, False, False, {})
    """

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode; returns the user's first turn and the info. The same seed begins the same episode.

        When the episode begins with more than one turn, `info["prompt"]` is the whole prompt as a `Dialogue` that ends with
        the user's turn: its turns, and what rewards read of it (reference, act, meta).
        """

    def step(self, reply: str) -> Step:
        """Answer the policy; returns the user's next turn, the reward of the reply, terminated, truncated, info.

        `terminated`: the dialogue has ended; `truncated`: it was cut off. The turn returned with either is the user's last
        one, or empty.
        """


class Baseline(Protocol):
    """A system that an environment knows already, to measure a policy against: it plays whole dialogues with it, in words."""

    def begin(self, seed: int) -> str:
        """Begin an episode; the user's first turn."""

    def reply(self) -> str:
        """What the system says next."""


def baseline_names(environment: Environment) -> Sequence[str]:
    """The names of the baselines that an environment understands (`BaselineFactory` builds them): its attribute `baselines`."""
    return tuple(getattr(environment, "baselines", ()))


class SingleTurn:
    """One episode: the prompt and one reply. The step's reward is 0; the reward class scores the reply.

    >>> environment = SingleTurn(Dialogue(["Hi .", "Who is there ?"], reference="Ada ."))
    >>> text, info = environment.reset()
    >>> text, info["prompt"].prompt_turns, info["prompt"].reference
    ('Who is there ?', ['Hi .', 'Who is there ?'], 'Ada .')
    >>> environment.step("Ben .")
    ('', 0.0, True, False, {})
    """

    def __init__(self, prompt: Dialogue):
        self.prompt = prompt

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """The prompt's last turn; nothing is random, so the seed has no effect."""
        return self.prompt.prompt_turns[-1], {"prompt": self.prompt}

    def step(self, reply: str) -> Step:
        """The end of the episode."""
        return "", 0.0, True, False, {}


def build_environment(name: str, args: dict[str, Any]) -> Environment:
    """The environment of `environment: {id: name, args: args}`.

    Raises UserError for an unknown name or wrong arguments, when its constructor raises, and when it lacks a method.
    """
    if problem := EnvironmentFactory.problem(name, args):
        raise UserError(f"environment: {problem}")
    with as_user_error(f"environment {name}: its constructor"):
        built: Environment = EnvironmentFactory.classes[name](**args)
    for method in ("reset", "step"):
        check_method(built, method)
    return built


def open_episode(environment: Environment, seed: int | None = None, limits: EpisodeLimits = NO_LIMITS) -> Dialogue:
    """Reset the environment; returns the prompt of the new episode.

    Raises UserError when it raises, takes longer than `limits` allow, or returns something else.
    """
    found = call(environment, "reset", limits, lambda: environment.reset(seed=seed))
    is_pair = isinstance(found, tuple) and len(found) == 2
    if not (is_pair and isinstance(found[0], str) and isinstance(found[1], dict)):
        raise _wrong(environment, f"reset returned {found!r}; return a pair (text, info)")
    prompt = found[1].get("prompt", Dialogue([found[0]]))
    if not isinstance(prompt, Dialogue) or not prompt.prompt_turns:
        raise _wrong(environment, f"reset: info['prompt'] is {prompt!r}; give a Dialogue with one turn or more")
    _check_texts(environment, "reset", [found[0], *prompt.prompt_turns, *prompt.references, prompt.reference or ""])
    return prompt


def answer(environment: Environment, reply: str, limits: EpisodeLimits = NO_LIMITS) -> Step:
    """Make one step. Raises UserError as `open_episode` does, and for what cannot be learned from."""
    found = call(environment, "step", limits, lambda: environment.step(reply))
    is_step = isinstance(found, tuple) and len(found) == 5
    if not (is_step and isinstance(found[0], str) and isinstance(found[4], dict)):
        raise _wrong(environment, f"step returned {found!r}; return (text, reward, terminated, truncated, info)")
    text, reward, terminated, truncated, info = found
    _check_texts(environment, "step", [text])
    check_outcome(type(environment).__name__, reward, terminated, truncated, info)
    return text, float(reward), bool(terminated), bool(truncated), info


def check_turns(environment: Environment, number: int, limits: EpisodeLimits) -> None:
    """Raises UserError when a dialogue goes on after `number` replies, and the limits allow no more."""
    if limits.max_turns is not None and number >= limits.max_turns:
        raise _wrong(
            environment,
            f"step has not ended the dialogue after {number} replies (max_turns); return terminated or truncated as "
            "True at its end, or allow more turns",
        )


def check_outcome(name: str, reward: Any, terminated: Any, truncated: Any, info: Mapping[str, Any]) -> None:
    """Raises UserError, with the name of the environment, for parts of a step that cannot be learned from."""
    if not is_reward(reward):
        raise UserError(f"environment {name}: step returned the reward {reward!r}; return {REWARD}")
    for part, value in (("terminated", terminated), ("truncated", truncated)):
        if not is_truth(value):
            raise UserError(f"environment {name}: step returned {value!r} as {part}; return True or False")
    if (terminated or truncated) and not says_success(info):
        raise UserError(f"environment {name}: step returned the success {info['success']!r}; return {SUCCESS}")


def call_limited(who: str, cls: Any, seconds: float | None, work: Callable[[], T]) -> T:
    """What `work`, a call of a method of the class, returns. Raises UserError, with the line, when it raises or takes longer."""
    with as_user_error(who, cls):
        if seconds is None:
            return work()
        with ends_the_process(seconds):
            try:
                return run_with_timeout(seconds, work)
            except TimeLimit as late:
                place = find_user_line(cls, late.frames) or " running"
                raise UserError(
                    f"{who} did not return within {seconds:g} seconds (step_timeout_s); it was{place}"
                ) from late


def call(environment: Any, method: str, limits: EpisodeLimits, work: Callable[[], T]) -> T:
    """What `work`, a call of the method, returns. Raises UserError as `call_limited`."""
    cls = type(environment)
    return call_limited(f"environment {cls.__name__}: {method}", cls, limits.step_timeout_s, work)


def check_method(environment: Any, method: str) -> None:
    """Raises UserError where the environment has no such method."""
    if not callable(getattr(environment, method, None)):
        raise _wrong(environment, f"it has no method {method}; define reset and step")


def _wrong(environment: Environment, what: str) -> UserError:
    return UserError(f"environment {type(environment).__name__}: {what}")


def _check_texts(environment: Environment, method: str, texts: Sequence[Any]) -> None:
    for text in texts:
        if not is_text(text):
            raise _wrong(environment, f"{method} returned {text!r:.200}; return texts without half characters")
