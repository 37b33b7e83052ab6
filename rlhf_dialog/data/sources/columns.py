"""The `columns` of a configuration: which column of the data holds what."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_dialog.data.sources.cells import parse_lists
from rlhf_dialog.data.sources.messages import ROLE_KEYS, TEXT_KEYS
from rlhf_dialog.data.sources.record import DialogueRecord
from rlhf_dialog.data.sources.rows import ACT_KEYS, ID_KEYS, PROMPT_KEYS, REPLY_KEYS, TURN_KEYS, Row, Rows, prompt_in
from rlhf_dialog.errors import UserError, nearest

Columns = Mapping[Any, str]  # such as {"prompt": "question"}: the kind of a column, and its name in the data
BUILT_IN = {  # the kinds of columns, and the names that need no `columns`
    **{"messages": TURN_KEYS, "utterance": TEXT_KEYS, "role": ROLE_KEYS, "act": ACT_KEYS, "dialog_id": ID_KEYS},
    **{"prompt": PROMPT_KEYS, "reference": REPLY_KEYS},
    **{name: (name,) for name in ("references", "replies", "chosen", "rejected", "margin")},
}
FORMS = {"messages": TURN_KEYS, "prompt": PROMPT_KEYS}  # a column of these decides what a row is


@dataclass(frozen=True)
class RowReader:
    """Makes records, or anything else, of the rows of a file. Raises UserError for `columns` that the rows do not have."""

    make: Callable[[Rows, str], list[Any]]
    columns: Columns = field(default_factory=dict)

    def __post_init__(self) -> None:
        wanted_form = f"wanted {{kind: column}}, of the kinds {', '.join(BUILT_IN)}; docs/DATA.md shows them"
        if not isinstance(self.columns, Mapping):
            raise UserError(f"columns: found {self.columns!r:.80}, {wanted_form}")
        for kind, column in self.columns.items():
            if kind not in BUILT_IN or not isinstance(column, str):
                raise UserError(
                    f"columns: found {kind!r:.40}: {column!r:.40}, {wanted_form}{nearest(str(kind), BUILT_IN)}"
                )

    def __call__(self, rows: Rows, where: str) -> list[Any]:
        if not self.columns:
            return self.make(parse_lists(rows), where)
        rows = list(rows)
        names = list(dict.fromkeys(str(name) for _, row in rows for name in row))
        for kind, column in self.columns.items():
            if rows and column not in names:
                there = ", ".join(f"'{name:.40}'" for name in names[:20])
                raise UserError(
                    f"columns.{kind}: {where} has no column '{column}', it has {there}; name one of them"
                    f"{nearest(column, names)}"
                )
        try:
            return self.make(parse_lists((place, self._rename(row)) for place, row in rows), where)
        except UserError as error:
            for kind, column in self.columns.items():  # the user knows the column
                error = error.with_location(f"'{column}'", f"'{kind}'")
            raise error from None

    def without_columns(self, records: list[DialogueRecord], where: str) -> list[DialogueRecord]:
        """The records, of data without columns. Raises UserError where some are named."""
        if self.columns:
            raise UserError(f"columns: {where} has none, it is in the original DailyDialog layout; leave columns out")
        return records

    def _rename(self, row: Row) -> Row:
        """The row with the named columns under their kinds, and without others that could be taken for the same."""
        hidden = {name for kind in self.columns for name in BUILT_IN[kind]} | set(self.columns.values())
        if not FORMS.keys().isdisjoint(self.columns):
            hidden.update(*(names for kind, names in FORMS.items() if kind not in self.columns))
        renamed = {kind: row[column] for kind, column in self.columns.items() if column in row}
        if "prompt" in renamed:
            renamed["prompt"], used = prompt_in(row, self.columns["prompt"])
            hidden |= used
        return type(row)({name: value for name, value in row.items() if name not in hidden} | renamed)
