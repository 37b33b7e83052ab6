"""Arguments of learners as typed classes: a field says its default and its range, and `policy.args` of a YAML becomes one."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, ValidationError

from rlhf_dialog.errors import UserError, nearest

T = TypeVar("T")
STRICT = ConfigDict(extra="forbid", strict=True)  # of these dataclasses: neither a text nor a bool is a number
Sizes = Sequence[Annotated[int, Field(ge=1, le=10**5)]]  # such as the units of hidden layers


def ranged(default: float, low: float, high: float) -> Any:
    """A field for a number from low to high; a whole number where its annotation is int."""
    return Field(default, ge=low, le=high)


def constant(default: Any) -> Any:
    """A field of the parent that cannot be given here."""
    return Field(default, init=False)


def read_arguments(cls: type[T], args: dict[str, Any]) -> T:
    """The arguments as this class. Raises UserError with the first key that is unknown or has a wrong value."""
    try:
        return cls(**args)
    except ValidationError as error:
        first = error.errors()[0]
        key, known = str(first["loc"][0]), [one.name for one in fields(cls) if one.init]  # type: ignore[arg-type]
        if key not in known:
            advice = f"{nearest(key, known) or '.'} Known: {', '.join(known)}"
            raise UserError(f"policy.args.{key}: there is no such argument{advice}") from None
        raise UserError(f"policy.args.{key}: found {args[key]!r}. {first['msg']}") from None
