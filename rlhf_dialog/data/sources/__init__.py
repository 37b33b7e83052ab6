"""Read and check dialogues, with their acts, from files, folders, archives or the Hugging Face Hub.

`Source` finds the rows of a split (`splits`, `files`, `from_hub`) and names their columns (`columns`), and `rows.Records` turns
rows into dialogues: it has the table of layouts, `messages` reads one message and says who replies, and `record` is what comes
out, with the names of columns (`data.row_counts` says what was left out). Both can be read from any place on, so that large data
need not be in memory. docs/DATA.md shows every layout to users.

Nothing is written or unpacked, so several runs can read the same data at once. A column is read, or named; a row is read, or
counted; what has two meanings is refused.
"""

import os
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlhf_dialog.data.hub import HOW_TO_MAKE, is_local
from rlhf_dialog.data.sources.columns import (
    Columns,
    check_columns,
    find_hidden,
    find_transcripts,
    naming_columns,
    read_texts,
    rename_columns,
)
from rlhf_dialog.data.sources.files import KINDS, Keyed, Table
from rlhf_dialog.data.sources.record import SPLITS, DialogueRecord
from rlhf_dialog.data.sources.rows import Records, Row
from rlhf_dialog.data.sources.splits import LAYOUTS, NO_NAMES, Split, SplitNames, find_table
from rlhf_dialog.errors import UserError

__all__ = ["SPLITS", "DialogueRecord", "Source", "check_path", "is_hub_name", "load_records", "load_rows"]
NO_COLUMNS: Columns = MappingProxyType({})


class Source:
    """The rows of one split, read as often as they are asked for: the keys are those of its table.

    What the columns and texts of all rows are is found when it is made. A copy for another process is closed: `open` it there.
    """

    def __init__(
        self,
        data_path: str,
        split: str,
        columns: Columns = NO_COLUMNS,
        names: SplitNames = NO_NAMES,
        quiet: bool = False,
    ):
        """As `load_records`. Raises MissingSplit and UserError."""
        self.data_path, self.wanted = data_path, Split.of(split, names)
        check_columns(columns)
        self.columns = dict(columns)
        self.table, self.where = self._open()
        self.size = self.table.size
        self.hidden = find_hidden(((place, row) for _, place, row in self.table.rows()), self.where, columns, quiet)
        renamed = ((place, self._named(row)) for _, place, row in self.table.rows())
        self.transcripts = find_transcripts(renamed, self.where, quiet)

    def _open(self) -> tuple[Table, str]:
        path = Path(os.path.expanduser(self.data_path))
        if os.path.exists(path):
            return find_table(path, self.wanted)
        check_path(self.data_path)
        from rlhf_dialog.data.sources.from_hub import table_of_hub  # it loads `datasets`

        return table_of_hub(self.data_path, self.wanted)

    def _named(self, row: Row) -> Row:
        return rename_columns(row, self.columns, self.hidden) if self.columns else row

    def rows(self, start: int = 0) -> Keyed:
        """The rows from the key `start` on, with the columns that `columns` names, with lists for texts that hold one or are
        transcripts."""
        with naming_columns(self.columns):
            for key, place, row in self.table.rows(start):
                yield key, place, read_texts(self._named(row), place, self.transcripts)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "table"}

    def open(self, data_path: str) -> None:
        """Open a copy from another process. Raises UserError when the files at `data_path` are not as large as those there."""
        self.data_path = data_path
        self.table, self.where = self._open()
        if self.table.size != self.size:
            raise self.another()

    def another(self) -> UserError:
        """The error for files that are not those of the process from which a copy is."""
        return UserError(f"{self.where}: is not what rank 0 has read; give all processes the same files")


def load_records(
    data_path: str,
    split: str,
    columns: Columns = NO_COLUMNS,
    names: SplitNames = NO_NAMES,
    with_calls: bool = False,
    quiet: bool = False,
) -> list[DialogueRecord]:
    """The dialogues of one split ("train", "validation" or "test"), in the order of the data.

    `data_path` is a folder, a zip archive, a data file (all of it is "train"), or else the name of a Hub data set.
    `columns`: the columns that hold what, such as {"prompt": "question"}, where their names are not built in (`columns`).
    `names`: what the data calls its splits, such as {"train": "train_sft"}. `with_calls` and `quiet`: see `Records`.
    Nothing is written. Raises MissingSplit when the data has no such split, and UserError that names the file and the line
    or row that cannot be read.
    """
    source = Source(data_path, split, columns, names, quiet)
    with naming_columns(columns):
        return [record for _, record in Records(source.rows, source.where, with_calls).read(quiet)]


def load_rows(
    data_path: str, split: str, columns: Columns = NO_COLUMNS, names: SplitNames = NO_NAMES
) -> list[tuple[str, Row]]:
    """The rows of one split as they are in the data but for `columns`, each with its place. Raises as `load_records` does."""
    return [(place, row) for _, place, row in Source(data_path, split, columns, names).rows()]


def check_path(data_path: str) -> None:
    """Raises UserError when nothing is at this path of data, and it cannot be a name on the Hub either."""
    if not os.path.exists(os.path.expanduser(data_path)) and not is_hub_name(data_path):
        raise UserError(f"data path '{data_path}': no such file or folder{HOW_TO_MAKE}; give {LAYOUTS}")


def is_hub_name(data_path: str) -> bool:
    """Whether `load_records` looks for the data on the Hub: nothing is at that path, and it is not written like a path."""
    path = Path(os.path.expanduser(data_path))
    return not (os.path.exists(path) or is_local(data_path) or path.suffix.lower() in (*KINDS, ".zip"))
