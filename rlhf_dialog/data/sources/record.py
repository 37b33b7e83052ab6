"""One dialogue as read from the data, the names of the columns that it comes from, and the checks that all layouts share."""

import contextlib
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_dialog.data.dialogue import ToolText
from rlhf_dialog.data.row_counts import BadRow, is_null
from rlhf_dialog.data.written_texts import MARKS, find_mark
from rlhf_dialog.errors import UserError, nearest

SPLITS = ("train", "validation", "test")
ACTS = {"inform": 1, "question": 2, "directive": 3, "commissive": 4}
RECIPES = "docs/DATA.md, 'Other layouts', has the lines of Python that rewrite such data"
# the kinds of columns, and the names that each is known by; docs/DATA.md shows them to users
NAMES = {
    "messages": ("dialog", "dialogue", "utterances", "turns", "messages", "conversation", "conversations"),
    "utterance": ("utterance", "text", "content", "value"),
    "role": ("role", "from", "speaker"),
    "speaker": ("role", "from", "speaker"),
    "act": ("act", "acts", "act_label_text", "act_label"),
    "dialog_id": ("dialog_id", "dialogue_id", "conversation_id", "conv_id", "id"),
    "prompt": ("prompt", "question", "instruction"),
    "reference": ("reference", "response", "completion", "answer", "output"),
    "references": ("references",),
    "system": ("system", "system_prompt", "system_message"),  # a text, or a list of texts
    "history": ("history", "context"),  # the turns before a prompt
    "input": ("input", "context"),  # what follows an instruction, after a blank line
    "parent": ("parent_id", "parent", "reply-to", "reply_to"),  # of the rows of a tree
    "message_id": ("message_id", "id"),
    **{name: (name,) for name in ("chosen", "rejected", "margin")},
}
SIDES = ("chosen", "rejected")  # the two replies of a pair
FLAGS = {0: False, 1: True, "0": False, "1": True, "false": False, "true": True}  # 0 and 1 are also false and true


@dataclass
class DialogueRecord:
    """One dialogue as read from the data, or one prompt of a data set that consists of prompts.

    >>> DialogueRecord(turns=["Is it far ?", "Two streets ."], acts=[2, 1])
    >>> DialogueRecord(turns=["Is it far ?"], acts=[1], references=[["Two streets .", "No ."]], is_prompt=True)
    """

    turns: list[str]  # stripped, none empty; a ToolText where tools are called or answer
    acts: list[int] | None = None  # one per turn: 1 inform, 2 question, 3 directive, 4 commissive
    references: list[list[str]] | None = None  # one list per turn: further acceptable versions of it
    meta: dict[str, Any] = field(default_factory=dict)  # the other columns; "system": the system messages
    is_prompt: bool = False  # `turns` is one whole prompt; `acts` and `references` have one item, for the reply
    roles: list[str | None] | None = None  # one per turn, in lower case; None where no turn has one
    # system messages, each with the number of turns before it
    system: list[tuple[int, str]] = field(default_factory=list)
    learned: list[bool] = field(default_factory=list)  # one per turn: whether it may be a reply to learn; empty: all
    tools: list[Any] = field(default_factory=list)  # that the assistant may call, as a chat template takes them

    @property
    def has_calls(self) -> bool:
        """Whether tools are called or answer in it."""
        replies = (text for some in self.references or () for text in some)
        return any(isinstance(text, ToolText) for text in (*self.turns, *replies))


def find(row: dict[str, Any], *kinds: str) -> str | None:
    """The first column of these kinds that has a value in `row`, in the order of NAMES; else as `first_filled`."""
    names = NAMES[kinds[0]] if len(kinds) == 1 else [name for kind in kinds for name in NAMES[kind]]
    return first_filled(names, row)


def first_filled(keys: Iterable[str], row: dict[str, Any]) -> str | None:
    """The first of `keys` that has a value in `row`; else the first that is present (as null); else None."""
    empty = None
    for key in keys:  # of each message of each row
        if row.get(key) is not None:
            return key
        if empty is None and key in row:
            empty = key
    return empty


def checked_text(text: Any, what: str, where: str) -> str:
    """`text` stripped. Raises BadRow when it is null, blank or rendered, UserError when it is no string or no UTF-8."""
    if not isinstance(text, str) or not (text.strip() or isinstance(text, ToolText)):
        error = BadRow if is_null(text) or isinstance(text, str) else UserError
        raise error(
            f"{where}: {what} holds {kind(text)}, wanted a string with text; correct or remove it (and its act)"
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(
            f"{where}: {what} holds half a character (a lone surrogate); write the whole character"
        ) from None
    refuse_rendered(text, what, where)
    return text if isinstance(text, ToolText) else text.strip()


def refuse_rendered(text: str, what: str, where: str, marks: Sequence[str] = MARKS) -> None:
    """Raises BadRow for a text that a chat template has written already: another template would write it a second time."""
    if mark := find_mark(text, marks):
        shown = text[max(0, text.find(mark) - 20) :].strip()
        raise BadRow(
            f"{where}: {what} holds {mark!r}, so a chat template has written it already ({shown!r:.80}); give the plain text, or "
            "messages with roles"
        )


def act_number(act: Any, what: str, where: str) -> int:
    """The act, 1 to 4, from a number (also 2.0, as pandas writes it), digits or a name. Raises UserError for anything else."""
    number = ACTS.get(act.strip().lower(), act) if isinstance(act, str) else act
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        number = None if isinstance(number, bool) else float(number)
    if number not in ACTS.values():
        known = ", ".join(f"{value} {name}" for name, value in ACTS.items())
        hint = nearest(act.lower(), ACTS) if isinstance(act, str) else ""
        shown = "null" if is_null(act) else reprlib.repr(act)
        raise UserError(f"{where}: {what} is {shown}, wanted a number from 1 to 4 ({known}){hint}")
    return int(number)


def read_flag(value: Any) -> bool | None:
    """Whether a cell says true or 1 (also as text), or false or 0; None for anything else."""
    key = value.strip().lower() if isinstance(value, str) else value
    return FLAGS.get(key) if isinstance(key, str | int | float) else None


def kind(value: Any) -> str:
    """The kind of a value in JSON terms, for messages."""
    if is_null(value):
        return "null"
    if isinstance(value, str):
        return "text" if value.strip() else "an empty text"
    names = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def show_columns(names: Iterable[Any]) -> str:
    """The names of a row's columns, for messages."""
    return ", ".join(f"'{name!s:.40}'" for name in list(names)[:20]) or "nothing"
