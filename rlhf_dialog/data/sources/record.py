"""One dialogue as read from the data, the checks that all layouts share, and what became of the rows of one split."""

import contextlib
import logging
import math
import re
import reprlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rlhf_dialog.data.dialogue import ToolText
from rlhf_dialog.data.written_texts import MARKS, find_mark
from rlhf_dialog.errors import UserError, nearest

logger = logging.getLogger(__name__)
SPLITS = ("train", "validation", "test")
ACTS = {"inform": 1, "question": 2, "directive": 3, "commissive": 4}
BAD_SHARE = 0.1  # of the rows that may have no text where one must be
RECIPES = "docs/DATA.md, 'Other layouts', has the lines of Python that rewrite such data"
FLAGS = {0: False, 1: True, "0": False, "1": True, "false": False, "true": True}  # 0 and 1 are also false and true
DECIDES = re.compile(  # names of columns that say what a row is worth
    r"better|safer?(_|\b)|winner|prefer|label|score|rating|rank|reward|weight|vote|quality|review|delete|kto|correct|accept",
    re.IGNORECASE,
)
FEW = 4  # values of a column: more do not decide between two sides
MOST_COLUMNS = 12  # in one line of the log; at the level DEBUG all
Item = TypeVar("Item")
Result = TypeVar("Result")


class BadRow(UserError):
    """A row with an empty, null, blank or rendered text, or with two equal sides. `RowCounts` leaves a few of them out."""


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


def is_null(value: Any) -> bool:
    """Whether a cell is missing: null, or the NaN that pandas writes for it."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def is_empty(value: Any) -> bool:
    """Whether a cell holds nothing: it is missing, blank, or an empty list or object."""
    return is_null(value) or (isinstance(value, str) and not value.strip()) or value in ([], {})


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


class LeftOut(Exception):
    """A row that is left out by design: the place, what it has, and more about that (or nothing)."""


@dataclass
class Unused:
    """The columns of rows that are not used: for each the number of its rows, and up to FEW + 1 of its values."""

    num_rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    values: dict[str, set[Any]] = field(default_factory=lambda: defaultdict(set))

    def add(self, row: Mapping[str, Any]) -> None:
        """Count the unused columns of one more row."""
        self.num_rows += 1
        self.counts.update(row.keys())
        for name, value in row.items():
            if len(self.values[name]) <= FEW:
                self.values[name].add(value if isinstance(value, str | int | float) else repr(value))

    def listed(self) -> str:
        """The columns that do not hold the same in all rows, each with the number of its rows; at most MOST_COLUMNS of them.

        First are those that could decide, by their names or because they have few values.
        """
        one = self.num_rows == 1
        varied = [
            name for name, count in self.counts.items() if one or count < self.num_rows or len(self.values[name]) > 1
        ]
        varied.sort(key=lambda name: (not DECIDES.search(name), len(self.values[name]) > FEW))
        most = len(varied) if logger.isEnabledFor(logging.DEBUG) else MOST_COLUMNS
        more = f" and {len(varied) - most} more" if len(varied) > most else ""
        return ", ".join(f"'{name:.40}' ({self.counts[name]} rows)" for name in varied[:most]) + more


@dataclass
class RowCounts:
    """Reads rows one by one and counts. `log` says what was counted, with at most one line for each kind.

    - **Bad rows** (BadRow) are left out up to a tenth of the rows; beyond, one error lists the first five.
    - **Rows that are left out by design** (LeftOut) have no limit, but some row must be left.
    - **Columns** that are in no prompt and no reply are named, with the number of their rows; but not those that hold the same
      in all rows.
    """

    where: str
    unit: str = "rows"
    num_rows: int = 0
    bad: list[str] = field(default_factory=list)
    left_out: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    kept: Unused = field(default_factory=Unused)  # in `meta`
    unread: Unused = field(default_factory=Unused)

    def read(self, items: Iterable[Item], make: Callable[[Item], Result]) -> list[Result]:
        """What `make` gives for each item. Raises UserError when too many are bad, or none is left."""
        results = []
        for item in items:
            self.num_rows += 1
            try:
                results.append(make(item))
            except BadRow as error:
                self.bad.append(str(error))
            except LeftOut as error:
                where, reason, detail = (*error.args, "")[:3]
                self.left_out[reason].append((where, detail))
        if len(self.bad) > BAD_SHARE * self.num_rows or not (results or self.left_out):
            shown = "".join(f"\n  {one}" for one in self.bad[:5])
            raise UserError(
                f"{self.where}: {len(self.bad)} of {self.num_rows} {self.unit} cannot be used, and only up to "
                f"{BAD_SHARE:.0%} may be left out; correct or remove them. The first:{shown}"
            )
        if not results:
            reason, places = next(iter(self.left_out.items()))
            where, detail = places[0]
            raise UserError(
                f"{where}: no row can be used; this one has {reason}, which cannot be read{detail}; give other data"
            )
        return results

    def note(self, row: Mapping[str, Any], used: Iterable[str | None], in_meta: bool = True) -> None:
        """Count the columns of a row that are filled and were not used, once a row; `in_meta`: they are kept for rewards."""
        used = set(used)
        unused = {str(name): value for name, value in row.items() if name not in used and not is_empty(value)}
        (self.kept if in_meta else self.unread).add(unused)

    def log(self, without_reference: int = 0) -> None:
        """One line for each kind of rows that were left out, and for the columns; some prompts may be `without_reference`."""
        if self.bad:
            text = "%s: %d of %d %s cannot be used, and are left out; the first: %s"
            logger.warning(text, self.where, len(self.bad), self.num_rows, self.unit, self.bad[0])
        for reason, places in self.left_out.items():
            text = "%d of %d %s have %s and are left out; the first: %s"
            logger.warning(text, len(places), self.num_rows, self.unit, reason, places[0][0])
        if columns := self.kept.listed():
            hint = f"; {without_reference} prompts have no reference: if it is here, name it with columns: {{reference: ...}}"
            text = "%s: kept for rewards, in no prompt: %s%s"
            logger.info(text, self.where, columns, hint if without_reference else "")
        if columns := self.unread.listed():
            logger.warning("%s: not read: %s", self.where, columns)


def show_columns(names: Iterable[Any]) -> str:
    """The names of a row's columns, for messages."""
    return ", ".join(f"'{name!s:.40}'" for name in list(names)[:20]) or "nothing"
