"""The items of one dialogue -> its turns: strings, objects with a text, messages with a role."""

import logging
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rlhf_dialog.data.sources.record import checked_text, kind
from rlhf_dialog.errors import UserError

logger = logging.getLogger(__name__)

TEXT_KEYS = ("utterance", "text", "content", "value")
ROLE_KEYS = ("role", "from", "speaker")
SYSTEM_ROLES = ("system", "developer")
TOOL_ROLES = ("tool", "function", "ipython")
TOOL_CALLS = ("tool_calls", "function_call")


@dataclass
class Messages:
    """The turns of one dialogue, not checked yet, and its system messages, which are no turns."""

    turns: list[Any] = field(default_factory=list)
    roles: list[str | None] = field(default_factory=list)  # of each turn, in lower case
    system: list[tuple[int, str]] = field(default_factory=list)  # the number of turns before it, and its text

    @property
    def meta(self) -> dict[str, Any]:
        """What `Dialogue.meta` holds of them."""
        return {"system": "\n".join(text for _, text in self.system)} if self.system else {}


def split_messages(items: list[Any], where: str) -> Messages:
    """Turns and system messages. Raises UserError for a content that is not text, or an object without a text."""
    messages = Messages()
    for number, item in enumerate(items, 1):
        if is_system(item):
            text = checked_text(_text(item, number, where), f"system message {number}", where)
            messages.system.append((len(messages.turns), text))
        else:
            messages.turns.append(_text(item, number, where))
            messages.roles.append(read_role(item))
    return messages


def read_role(item: Any) -> str | None:
    """The role of a message in lower case; None when the item is not a message with a role."""
    role = first_filled(ROLE_KEYS, item) if isinstance(item, dict) else None
    return item[role].strip().lower() if role and isinstance(item[role], str) else None


def is_system(item: Any) -> bool:
    """Whether an item is a system message. (The speaker `system` of a dialogue is one who speaks.)"""
    return read_role(item) in SYSTEM_ROLES and any(isinstance(item.get(key), str) for key in ROLE_KEYS[:2])


def drop_tools(rows: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows without those that have tool messages or calls of tools, which are counted in one line."""
    count, left_out, place = 0, 0, ""
    for where, row in rows:
        count += 1
        if any(isinstance(cell, list) and any(map(uses_tools, cell)) for cell in row.values()):
            left_out, place = left_out + 1, place or where
        else:
            yield where, row
    say_left_out(left_out, f"of {count} rows", place)
    if left_out == count and count:
        raise UserError(f"{place}: this row and all others have tool messages, which cannot be read; give other data")


def uses_tools(item: Any) -> bool:
    """Whether a message is a tool's, or calls one."""
    return isinstance(item, dict) and (read_role(item) in TOOL_ROLES or any(item.get(key) for key in TOOL_CALLS))


def say_left_out(count: int, all_rows: str, place: str) -> None:
    """One line about what tool messages have left out, if anything."""
    if count:
        logger.warning("%d %s have tool messages and are left out; the first: %s", count, all_rows, place)


def said_by_turns(items: list[Any], keys: Iterable[str]) -> list[Any] | None:
    """For turns that are objects, the value of each under one of `keys`, or None; None when no turn has a value."""
    turns = [item for item in items if not is_system(item)]
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
