"""What became of the rows of one split: bad ones, those that are left out by design, and the columns that are not used."""

import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rlhf_dialog.errors import UserError

logger = logging.getLogger(__name__)
BAD_SHARE = 0.1  # of the rows that may have no text where one must be
SHOWN = 5  # bad rows in an error
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


class LeftOut(Exception):
    """A row that is left out by design: the place, what it has, and more about that (or nothing)."""


def is_null(value: Any) -> bool:
    """Whether a cell is missing: null, or the NaN that pandas writes for it."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def is_empty(value: Any) -> bool:
    """Whether a cell holds nothing: it is missing, blank, or an empty list or object."""
    return is_null(value) or (isinstance(value, str) and not value.strip()) or value in ([], {})


@dataclass
class Unused:
    """The columns of rows that are not used: for each the number of its rows, and up to FEW + 1 of its values."""

    num_rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    values: dict[str, set[Any]] = field(default_factory=lambda: defaultdict(set))

    def add(self, row: Mapping[str, Any], used: Container[str | None] = ()) -> None:
        """Count the columns of one more row that are filled and not `used`."""
        self.num_rows += 1
        unused = ((str(name), value) for name, value in row.items() if name not in used and not is_empty(value))
        for name, value in unused:
            self.counts[name] += 1
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
    num_bad: int = 0
    bad: list[str] = field(default_factory=list)  # what is wrong with the first SHOWN
    left_out: Counter[str] = field(default_factory=Counter)
    first_out: dict[str, tuple[str, str]] = field(default_factory=dict)  # of each kind, and more about it
    kept: Unused = field(default_factory=Unused)  # in `meta`, for rewards
    unread: Unused = field(default_factory=Unused)

    def read(self, items: Iterable[Item], make: Callable[[Item], Result]) -> Iterator[Result]:
        """What `make` gives for each item. Raises UserError at the end when too many are bad, or none is left."""
        for item in items:
            self.num_rows += 1
            try:
                result = make(item)
            except BadRow as error:
                self.add_bad(error)
            except LeftOut as error:
                where, reason, detail = (*error.args, "")[:3]
                self.left_out[reason] += 1
                self.first_out.setdefault(reason, (where, detail))
            else:
                yield result
        self.check_bad()
        if self.num_rows == self.num_bad + self.left_out.total():
            reason, (where, detail) = next(iter(self.first_out.items()))
            raise UserError(
                f"{where}: no row can be used; this one has {reason}, which cannot be read{detail}; give other data"
            )

    def add_bad(self, error: BadRow) -> None:
        """Count a bad row."""
        self.num_bad += 1
        if len(self.bad) < SHOWN:
            self.bad.append(str(error))

    def check_bad(self) -> None:
        """Raises UserError when too many rows are bad."""
        if self.num_bad > BAD_SHARE * self.num_rows or not self.num_rows:
            shown = "".join(f"\n  {one}" for one in self.bad)
            raise UserError(
                f"{self.where}: {self.num_bad} of {self.num_rows} {self.unit} cannot be used, and only up to "
                f"{BAD_SHARE:.0%} may be left out; correct or remove them. The first:{shown}"
            )

    def log(self, without_reference: int = 0) -> None:
        """One line for each kind of rows that were left out, and for the columns; some prompts may be `without_reference`."""
        if self.bad:
            text = "%s: %d of %d %s cannot be used, and are left out; the first: %s"
            logger.warning(text, self.where, self.num_bad, self.num_rows, self.unit, self.bad[0])
        for reason, (where, _) in self.first_out.items():
            text = "%d of %d %s have %s and are left out; the first: %s"
            logger.warning(text, self.left_out[reason], self.num_rows, self.unit, reason, where)
        if columns := self.kept.listed():
            hint = f"; {without_reference} prompts have no reference: if it is here, name it with columns: {{reference: ...}}"
            text = "%s: kept for rewards, in no prompt: %s%s"
            logger.info(text, self.where, columns, hint if without_reference else "")
        if columns := self.unread.listed():
            logger.warning("%s: not read: %s", self.where, columns)
