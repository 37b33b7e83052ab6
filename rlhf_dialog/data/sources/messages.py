"""The items of one dialogue -> its turns: strings, objects with a text, messages with a role."""

import functools
import logging
import reprlib
from collections.abc import Iterable
from typing import Any

from rlhf_dialog.data.sources.record import checked_text, kind
from rlhf_dialog.errors import UserError

logger = logging.getLogger(__name__)

TEXT_KEYS = ("utterance", "text", "content", "value")
ROLE_KEYS = ("role", "from")
SYSTEM_ROLES = ("system", "developer")
TOOL_ROLES = ("tool", "function")


def split_messages(items: list[Any], where: str) -> tuple[list[Any], dict[str, Any]]:
    """The turns, not checked yet, and {"system": text} where there are system messages, which are not turns.

    Raises UserError for a tool message, a content that is not text, or an object without a text.
    """
    turns, system = [], []
    for number, item in enumerate(items, 1):
        if read_role(item) in SYSTEM_ROLES:
            system.append(checked_text(_text(item, number, where), f"system message {number}", where))
        else:
            turns.append(_text(item, number, where))
    if system:
        _say_that_system_is_not_shown()
    return turns, {"system": "\n".join(system)} if system else {}


def read_role(item: Any) -> str | None:
    """The role of a message; None when the item is not a message with a role."""
    role = first_filled(ROLE_KEYS, item) if isinstance(item, dict) else None
    return item[role] if role and isinstance(item[role], str) else None


def said_by_turns(items: list[Any], keys: Iterable[str]) -> list[Any] | None:
    """For turns that are objects, the value of each under one of `keys`, or None; None when no turn has a value."""
    turns = [item for item in items if read_role(item) not in SYSTEM_ROLES]
    named = [(item, first_filled(keys, item) if isinstance(item, dict) else None) for item in turns]
    found = [item[key] if key else None for item, key in named]
    return found if any(key for _, key in named) else None


def first_filled(keys: Iterable[str], row: dict[str, Any]) -> str | None:
    """The first of `keys` that has a value in `row`; else the first that is present (as null); else None."""
    there = [key for key in keys if key in row]
    return next((key for key in there if row[key] is not None), there[0] if there else None)


def _text(item: Any, number: int, where: str) -> Any:
    if not isinstance(item, dict):
        return item
    if read_role(item) in TOOL_ROLES:
        raise UserError(f"{where}: turn {number} has the role '{read_role(item)}'; remove tool messages from the data")
    key = first_filled(TEXT_KEYS, item)
    if key is None:
        wanted = " or ".join(f"'{name}'" for name in TEXT_KEYS)
        found = ", ".join(f"'{name}'" for name in list(item)[:9]) or "nothing"
        raise UserError(f"{where}: turn {number} is an object without a text; wanted {wanted}, found {found}")
    return _join_parts(item[key], number, where) if isinstance(item[key], list) else item[key]


def _join_parts(parts: list[Any], number: int, where: str) -> str:
    """The parts of a message content (OpenAI format), joined by spaces."""
    for part in parts:
        if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            found = f"type {reprlib.repr(part.get('type'))}" if isinstance(part, dict) else kind(part)
            raise UserError(
                f"{where}: turn {number} has a part with {found}; only {{'type': 'text', 'text': '...'}} can be read, "
                "remove images and other parts from the data"
            )
    return " ".join(part["text"].strip() for part in parts)


@functools.cache  # warn once per process
def _say_that_system_is_not_shown() -> None:
    logger.warning("the data has system messages: they are kept in meta['system'], but the model does not see them")
