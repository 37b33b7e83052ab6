"""The protocol of dialogue environments, and how one is called: each of its mistakes is an error that names its class."""

import math
from numbers import Real
from typing import Any, Protocol

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError

Step = tuple[str, float, bool, bool, dict[str, Any]]


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


def opened(environment: Environment, seed: int | None = None) -> Dialogue:
    """Reset the environment; returns the prompt of the new episode. Raises UserError when it returns something else."""
    name = type(environment).__name__
    found = environment.reset(seed=seed)
    if not (_is_tuple(found, 2) and isinstance(found[0], str) and isinstance(found[1], dict)):
        raise UserError(f"environment {name}: reset returned {found!r}; return a pair (text, info)")
    text, info = found
    prompt = info.get("prompt", Dialogue([text]))
    if not isinstance(prompt, Dialogue) or not prompt.prompt_turns:
        raise UserError(f"environment {name}: info['prompt'] is {prompt!r}; give a Dialogue with one turn or more")
    return prompt


def answer(environment: Environment, reply: str) -> Step:
    """Make one step. Raises UserError when the environment returns something else, or a reward that is not finite."""
    found = environment.step(reply)
    if not (_is_tuple(found, 5) and isinstance(found[0], str)):
        raise UserError(
            f"environment {type(environment).__name__}: step returned {found!r}; return (text, reward, terminated, "
            "truncated, info)"
        )
    text, reward, terminated, truncated, info = found
    if not isinstance(reward, Real) or not math.isfinite(reward):
        raise UserError(
            f"environment {type(environment).__name__}: step returned the reward {reward!r}; return a finite number"
        )
    return text, float(reward), bool(terminated), bool(truncated), info


def _is_tuple(found: Any, length: int) -> bool:
    return isinstance(found, tuple) and len(found) == length
