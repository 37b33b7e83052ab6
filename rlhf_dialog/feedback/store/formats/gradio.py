"""Gradio's flagged CSV: the log of likes of a Chatbot or ChatInterface, and that of an Interface (CSVLogger)."""

import csv
import io
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from rlhf_dialog.data.sources.text import decoded
from rlhf_dialog.data.sources.trees import read_bytes
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats.record import Found, Judgement, answered, text_of
from rlhf_dialog.own_files import parsed

CHAT_HEADER = ["conversation", "index", "value", "flag", "timestamp"]  # its rows have no cell for "value"
ADDED = ("flag", "username", "timestamp")  # to the components' labels
LIKED = ("like", "liked", "good", "correct", "helpful", "yes", "up", "1", "true", "\U0001f44d")
DISLIKED = (
    "dislike",
    "disliked",
    "bad",
    "incorrect",
    "wrong",
    "unhelpful",
    "no",
    "down",
    "0",
    "-1",
    "false",
    "\U0001f44e",
)
ESCAPED = ("=", "+", "-", "@", "\t", "\n")  # Gradio writes an apostrophe before a cell with one of them in front


def is_log(columns: list[str]) -> bool:
    """Whether these are the columns of such a file."""
    return columns == CHAT_HEADER or "timestamp" in columns or "flag" in columns


def columns_of(path: Path) -> list[str]:
    """The first line of a CSV file. Raises UserError when it cannot be read."""
    return next(iter(_lines(path)), ("", [""]))[1]


def read(path: Path, ignored: tuple[str, ...] = ()) -> Found:
    """A thumb on each flagged answer. Raises UserError for columns that are not known, and when no row has a known flag."""
    lines = _lines(path)
    header = lines[0][1]
    imported = Found("gradio")
    read_row = _chat_row if header == CHAT_HEADER else _interface(header, str(path), ignored)
    for where, cells in lines[1:]:
        spoken, flag, person, time = read_row(cells, where)
        spoken = [(speaker, text) for speaker, text in spoken if speaker != "system"]
        said = [(speaker, text) for speaker, text in spoken if text is not None]
        label = _label(flag)
        if label is None:
            imported.leave_out(f"rows with the flag {flag[:30]!r}, which is neither like nor dislike")
        elif not said or len(said) < len(spoken) or said[-1][0] != "agent":
            imported.leave_out("rows whose flagged message is not a text of the bot, after texts")
        else:
            judgement = Judgement("thumb", 0, label, person=person or None, created=_seconds(time))
            imported.records.append(answered(said[:-1], [said[-1][1]], [judgement], group=said[0][1], where=where))
    if lines[1:] and not imported.records:
        reasons = "; ".join(imported.left_out)
        raise UserError(
            f"{path}: holds nothing to learn from ({reasons}); known flags are {', '.join(LIKED + DISLIKED)}"
        )
    return imported


def _lines(path: Path) -> list[tuple[str, list[str]]]:
    reader = csv.reader(io.StringIO(decoded(read_bytes(path), str(path)), newline=""), strict=True)
    lines = []
    try:
        for cells in reader:
            lines.append((f"{path}, line {reader.line_num}", cells))
    except csv.Error as error:
        raise UserError(
            f"{path}, line {reader.line_num}: {error}; check for a quotation mark that is not closed"
        ) from None
    return [(where, cells) for where, cells in lines if cells]


ROLES = {"user": "user", "system": "system"}
Spoken = list[tuple[str, str | None]]  # speaker and text; None for an image or a file
Cells = tuple[Spoken, str, str, str]  # what was said up to the flagged answer, the flag, the person, the time


def _chat_row(cells: list[str], where: str) -> Cells:
    """conversation, index, flag, time: the header names five columns, the rows have four."""
    if len(cells) not in (4, 5):
        raise UserError(f"{where}: has {len(cells)} cells, wanted the conversation, an index, the flag and a time")
    spoken, index = _spoken(cells[0], where), _parsed(cells[1], where)
    if isinstance(index, list) and index and all(isinstance(one, int) for one in index):
        index = 2 * index[0] + index[-1] if len(index) == 2 and _is_pairs(_parsed(cells[0], where)) else index[0]
    if not isinstance(index, int) or not 0 <= index < len(spoken):
        raise UserError(f"{where}: the index {cells[1]!r:.30} is not one of the {len(spoken)} messages; remove the row")
    return spoken[: index + 1], cells[2], "", cells[-1]


def _interface(header: list[str], where: str, ignored: tuple[str, ...]) -> Callable[[list[str], str], Cells]:
    labels = [name for name in header if name not in (*ADDED, *ignored)]
    if "flag" not in header or len(labels) not in (1, 2):
        shown = ", ".join(f"'{name:.40}'" for name in header)
        raise UserError(
            f"{where}: has the columns {shown}; known are {', '.join(ADDED)}, and beside them one column with the conversation "
            "of a Chatbot, or two with the message and the answer; leave others out with --ignore NAME,NAME"
        )

    def row(cells: list[str], at: str) -> Cells:
        if len(cells) != len(header):
            raise UserError(f"{at}: has {len(cells)} cells, but the first line names {len(header)} columns")
        named = dict(zip(header, map(_unescaped, cells), strict=True))
        if len(labels) == 1:
            spoken = _spoken(named[labels[0]], at)
        else:
            spoken = [(who, text_of(named[name])) for who, name in zip(("user", "agent"), labels, strict=True)]
        return spoken, named["flag"], named.get("username", ""), named.get("timestamp", "")

    return row


def _parsed(cell: str, where: str) -> Any:
    try:
        return parsed(_unescaped(cell))
    except ValueError as error:
        raise UserError(f"{where}: found {cell[:60]!r}, wanted JSON ({error}); is this a log of Gradio?") from None


def _spoken(cell: str, where: str) -> Spoken:
    """The messages of a Chatbot's value, or, of its older form, the message and the answer of each exchange."""
    value = _parsed(cell, where)
    if not isinstance(value, list) or not all(isinstance(one, dict | list) for one in value):
        raise UserError(f"{where}: found {cell[:60]!r}, wanted a list of messages; is this a log of Gradio?")
    if _is_pairs(value):
        return [(who, text_of(text)) for pair in value for who, text in zip(("user", "agent"), pair, strict=False)]
    return [(ROLES.get(one.get("role"), "agent"), text_of(one)) for one in value]


def _is_pairs(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, list) for one in value)


def _unescaped(cell: str) -> str:
    inner = cell[1:]
    escaped = inner.startswith(ESCAPED) or any(f",{mark}" in inner for mark in ESCAPED)
    return inner if cell.startswith("'") and escaped else cell


def _label(flag: str) -> int | None:
    word = _unescaped(flag).strip().lower()
    return 1 if word in LIKED else -1 if word in DISLIKED else None


def _seconds(time: str) -> float | None:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None
