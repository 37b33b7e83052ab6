"""What a policy sees of a dialogue in words: a vector of a fixed size, by a function that a YAML names."""

import math
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.config.registry import Registry
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world.action_list import split_words
from rlhf_dialog.user_code import as_user_error

# functions (turns, **args) -> a vector, always of the same size
StateFactory = Registry("state")
Turn = tuple[str, str]  # an action of the system (an empty text before the first one), and what the user said then


@StateFactory.register("last_turns")
def last_turns(turns: Sequence[Turn], size: int = 256, before: float = 0.2, action: float = 0.2) -> list[float]:
    """The words of the user's last turn, of the one before it with the weight `before`, and the last action.

    Each word and action has a place of its own, as far as `size` places are enough: the CRC-32 of its bytes, modulo `size`. Each
    of the three parts has the length 1, times its weight.
    """
    vector = [0.0] * size
    (taken, user_turn), (_, earlier) = ([("", ""), ("", ""), *turns])[:-3:-1]
    parts = (
        (split_words(user_turn), 1.0),
        ([f"before {word}" for word in split_words(earlier)], before),
        ([f"action {taken}"], action),
    )
    for names, weight in parts:
        counts = Counter(zlib.crc32(name.encode()) % size for name in names)
        length = math.sqrt(sum(number**2 for number in counts.values()))
        for place, number in counts.items():
            vector[place] += weight * number / length
    return vector


class StateFunction:
    """A registered function of the turns, called with `args`; `size` is that of its vectors.

    Raises UserError for an unknown name or wrong arguments, and for a function that raises, or returns something else than finite
    numbers of always the same size.
    """

    def __init__(self, name: str, args: dict[str, Any]):
        if problem := StateFactory.problem(name, {"turns": [], **args}):
            raise UserError(f"domain.state: {problem}")
        self.name = name
        self.function: Callable[[Sequence[Turn]], Any] = partial(StateFactory.classes[name], **args)
        self.size = 0
        self.size = len(self([]))

    def __call__(self, turns: Sequence[Turn]) -> NDArray[np.float32]:
        """The vector (D,) after these turns, the oldest one first."""
        with as_user_error(f"domain.state {self.name}:"):
            vector = np.array(self.function(list(turns)), dtype=np.float32)
        if vector.ndim != 1 or not len(vector) or not np.isfinite(vector).all() or self.size not in (0, len(vector)):
            expected = (
                f"{self.size} finite numbers, as for an empty dialogue" if self.size else "a list of finite numbers"
            )
            raise UserError(
                f"domain.state {self.name}: returned {vector.tolist()!r:.100} for {turns!r:.100}; return {expected}"
            )
        return vector
