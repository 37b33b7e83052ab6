"""What an environment may return, in words and in acts: the checks of truths, rewards, success and texts."""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

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
