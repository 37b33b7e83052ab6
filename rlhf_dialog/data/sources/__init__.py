"""Read and check dialogues, with their acts, from files, folders, archives or the Hugging Face Hub.

`load_records` finds the rows of a split (`splits`, `files`, `from_hub`), names their columns (`kinds`, `columns`), and turns
rows into dialogues: `rows` has the table of layouts, `messages` reads one message, and `record` is what comes out
(`data.row_counts` says what was left out). docs/DATA.md shows every layout to users.

Nothing is written or unpacked, so several runs can read the same data at once. A column is read, or named; a row is read, or
counted; what has two meanings is refused.
"""

import os
from pathlib import Path
from types import MappingProxyType

from rlhf_dialog.data.hub import HOW_TO_MAKE, is_local
from rlhf_dialog.data.sources.columns import Columns, check_columns, naming_columns, read_texts, rename_columns
from rlhf_dialog.data.sources.files import KINDS
from rlhf_dialog.data.sources.record import SPLITS, DialogueRecord
from rlhf_dialog.data.sources.rows import Row, Rows, read_records
from rlhf_dialog.data.sources.splits import LAYOUTS, NO_NAMES, Split, SplitNames, find_rows
from rlhf_dialog.errors import UserError

__all__ = ["SPLITS", "DialogueRecord", "check_path", "is_hub_name", "load_records", "load_rows"]
NO_COLUMNS: Columns = MappingProxyType({})


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
    `names`: what the data calls its splits, such as {"train": "train_sft"}. `with_calls` and `quiet`: see `read_records`.
    Nothing is written. Raises MissingSplit when the data has no such split, and UserError that names the file and the line
    or row that cannot be read.
    """
    rows, where = _find_rows(data_path, split, columns, names, quiet)
    with naming_columns(columns):
        return read_records(rows, where, with_calls, quiet)


def load_rows(
    data_path: str, split: str, columns: Columns = NO_COLUMNS, names: SplitNames = NO_NAMES
) -> list[tuple[str, Row]]:
    """The rows of one split as they are in the data but for `columns`, each with its place. Raises as `load_records` does."""
    rows, _ = _find_rows(data_path, split, columns, names)
    with naming_columns(columns):
        return list(rows)


def _find_rows(
    data_path: str, split: str, columns: Columns, names: SplitNames, quiet: bool = False
) -> tuple[Rows, str]:
    """The rows with the columns that `columns` names, with lists for texts that hold one or are transcripts; where they are."""
    wanted = Split.of(split, names)
    check_columns(columns)
    path = Path(os.path.expanduser(data_path))
    if os.path.exists(path):
        rows, where = find_rows(path, wanted)
    else:
        check_path(data_path)
        from rlhf_dialog.data.sources.from_hub import rows_of_hub  # it loads `datasets`

        rows, where = rows_of_hub(data_path, wanted)
    return read_texts(rename_columns(rows, where, columns, quiet), where, quiet), where


def check_path(data_path: str) -> None:
    """Raises UserError when nothing is at this path of data, and it cannot be a name on the Hub either."""
    if not os.path.exists(os.path.expanduser(data_path)) and not is_hub_name(data_path):
        raise UserError(f"data path '{data_path}': no such file or folder{HOW_TO_MAKE}; give {LAYOUTS}")


def is_hub_name(data_path: str) -> bool:
    """Whether `load_records` looks for the data on the Hub: nothing is at that path, and it is not written like a path."""
    path = Path(os.path.expanduser(data_path))
    return not (os.path.exists(path) or is_local(data_path) or path.suffix.lower() in (*KINDS, ".zip"))
