"""What became of the rows of one split: those that are left out, and the columns that are in no prompt, each said once."""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rlhf_dialog.data.sources.record import BadRow
from rlhf_dialog.errors import UserError

logger = logging.getLogger(__name__)
BAD_SHARE = 0.1  # of the rows that may have no text where one must be
Item = TypeVar("Item")
Result = TypeVar("Result")


class LeftOut(Exception):
    """A row that is left out by design: the place, what it has, and more about that."""

    def __init__(self, where: str, reason: str, detail: str = ""):
        super().__init__(where, reason, detail)


@dataclass
class RowCounts:
    """Reads rows one by one and counts. `log` says what was counted, with at most one line for each kind.

    - **Bad rows** (BadRow) are left out up to a tenth of the rows; beyond, one error lists the first five.
    - **Rows that are left out by design** (LeftOut) have no limit, but some row must be left.
    - **Columns with text** that are in no prompt and no reply are named, with the number of their rows.
    """

    where: str
    unit: str = "rows"
    num_rows: int = 0
    bad: list[str] = field(default_factory=list)
    left_out: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    kept: Counter[str] = field(default_factory=Counter)  # in `meta`
    unread: Counter[str] = field(default_factory=Counter)

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
                where, reason, detail = error.args
                self.left_out[reason].append((where, detail))
        if len(self.bad) > BAD_SHARE * self.num_rows or not (results or self.left_out):
            shown = "".join(f"\n  {one}" for one in self.bad[:5])
            raise UserError(
                f"{self.where}: {len(self.bad)} of {self.num_rows} {self.unit} cannot be used, and only up to "
                f"{BAD_SHARE:.0%} may be left out; correct or remove them. The first:{shown}"
            )
        for reason, places in self.left_out.items():
            if not results:
                where, detail = places[0]
                raise UserError(
                    f"{where}: this row and all others have {reason}, which cannot be read{detail}; give other data"
                )
        return results

    def note(self, row: Mapping[str, Any], used: Iterable[str | None], in_meta: bool = True) -> None:
        """Count the columns of a row that hold text and were not used; `in_meta`: they are kept for rewards."""
        used = set(used)
        (self.kept if in_meta else self.unread).update(
            str(name) for name, value in row.items() if name not in used and holds_text(value)
        )

    def log(self) -> None:
        """One line for each kind of rows that were left out, and for the columns."""
        if self.bad:
            text = (
                "%s: %d of %d %s have an empty, null or blank text or two equal sides, and are left out; the first: %s"
            )
            logger.warning(text, self.where, len(self.bad), self.num_rows, self.unit, self.bad[0])
        for reason, places in self.left_out.items():
            text = "%d of %d %s have %s and are left out; the first: %s"
            logger.warning(text, len(places), self.num_rows, self.unit, reason, places[0][0])
        for names, what, level in (
            (self.kept, "kept for rewards, in no prompt", logging.INFO),
            (self.unread, "not read", logging.WARNING),
        ):
            if names:
                logger.log(level, "%s: %s: %s", self.where, what, list_columns(names))


def list_columns(names: Counter[str]) -> str:
    """The columns, each with the number of its rows."""
    return ", ".join(f"'{name:.40}' ({count} rows)" for name, count in names.items())


def holds_text(value: Any) -> bool:
    """Whether a value is or holds a text that is not blank."""
    if isinstance(value, dict):
        return any(map(holds_text, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_text, value))
    return isinstance(value, str) and bool(value.strip())
