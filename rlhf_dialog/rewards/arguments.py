"""Checks of a reward's arguments in the YAML: each returns the value, and raises UserError for one that cannot work."""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from rlhf_dialog.errors import UserError

ARGS = "reward_class.args"


def is_finite(value: Any) -> bool:
    """A finite number, or its text: PyYAML reads `1e-1` as text."""
    if isinstance(value, bool) or not isinstance(value, (Real, str)):
        return False
    try:
        return math.isfinite(float(value))
    except (ValueError, OverflowError):
        return False


def number(
    key: str, value: Any, wanted: str = "a finite number", fits: Callable[[float], bool] = lambda _: True
) -> float:
    """A finite number, or its text, that `fits` what is `wanted`."""
    if not (is_finite(value) and fits(float(value))):
        raise UserError(f"{ARGS}.{key}: {value!r:.100} must be {wanted}")
    return float(value)


def whole(key: str, value: Any, least: int = 1) -> int:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{ARGS}.{key}: {value!r:.100} must be a whole number, at least {least}")
    return value


def choice(key: str, value: Any, choices: Sequence[str]) -> str:
    """One of the choices."""
    if value not in choices:
        raise UserError(f"{ARGS}.{key}: {value!r:.100} is not one of {', '.join(choices)}")
    return value
