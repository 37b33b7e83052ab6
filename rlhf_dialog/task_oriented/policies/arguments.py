"""Arguments of learners as typed classes: a field says its default and its range, and `policy.args` of a YAML becomes one."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeVar

from rlhf_dialog.errors import UserError

Initializer = TypeVar("Initializer", bound=Callable[..., None])


@dataclass(frozen=True)
class Arguments:
    """A subclass has fields made by `real`, `whole` and `layers`. Raises UserError, with its name, for a wrong value."""

    def __post_init__(self) -> None:
        for item in fields(self):
            if "check" in item.metadata:
                item.metadata["check"](item.name, getattr(self, item.name))


def real(default: float, low: float, high: float) -> Any:
    """A field for a number from low to high."""
    return field(default=default, metadata={"check": partial(_check_range, int | float, "a number", low, high)})


def whole(default: int, low: int, high: int) -> Any:
    """A field for a whole number from low to high."""
    return field(default=default, metadata={"check": partial(_check_range, int, "a whole number", low, high)})


def layers(*default: int) -> Any:
    """A field for the units of hidden layers."""
    return field(default=default, metadata={"check": _check_sizes})


def constant(default: Any) -> Any:
    """A field of the parent that cannot be given here."""
    return field(default=default, init=False)


def takes(arguments: type[Arguments]) -> Callable[[Initializer], Initializer]:
    """Decorator of `__init__(self, setting, **args)`: its signature lists the arguments, so that a wrong one is named."""
    listed = inspect.signature(arguments).parameters.values()

    def with_signature(initializer: Initializer) -> Initializer:
        named = inspect.signature(initializer).parameters.values()
        before = [each for each in named if each.kind is not each.VAR_KEYWORD]
        initializer.__signature__ = inspect.Signature([*before, *listed])  # type: ignore[attr-defined]
        return initializer

    return with_signature


def _check_range(kind: Any, expected: str, low: float, high: float, name: str, value: Any) -> None:
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise UserError(f"policy.args.{name}: found {value!r}, wanted {expected} from {low:g} to {high:g}")


def _check_sizes(name: str, sizes: Any) -> None:
    is_list = isinstance(sizes, list | tuple)
    if not is_list or not all(type(size) is int and 1 <= size <= 10**5 for size in sizes):
        raise UserError(f"policy.args.{name}: found {sizes!r}, wanted a list of numbers such as [128, 64]")
