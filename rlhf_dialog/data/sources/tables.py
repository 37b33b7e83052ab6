"""Parquet files, and folders written by `save_to_disk` of the datasets library, read in memory without writing anything."""

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlhf_dialog.data.sources.rows import Row
from rlhf_dialog.data.sources.trees import Tree
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import FAULTS, parse_json


def read_parquet(data: bytes, where: str) -> Iterator[tuple[str, Row]]:
    """The rows of one parquet file. Raises UserError when it cannot be read."""
    return _rows(lambda: pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False), where, "a parquet file")


def read_saved(tree: Tree, state: str) -> Iterator[tuple[str, Row]]:
    """The rows of a saved Dataset: `state` is its state.json. Raises UserError when a file is missing or damaged."""
    for name in _arrow_files(tree, state):
        path = str(PurePosixPath(state).parent / name)
        if path not in tree.names:
            raise UserError(f"{tree.place(path)}: the file is missing; save the data set again with save_to_disk")
        data = tree.read(path)
        yield from _rows(lambda data=data: _open_arrow(data).read_all(), tree.place(path), "an Arrow file")  # type: ignore[misc]


def _arrow_files(tree: Tree, state: str) -> list[str]:
    where = tree.place(state)
    try:
        known = parse_json(tree.read(state))
        names = [PurePosixPath(item["filename"]).name for item in known["_data_files"]]
        reordered = known.get("_indices_data_files") or known.get("_indices_files")
    except FAULTS:
        raise UserError(
            f"{where}: this is not the state.json of a saved data set; save the data set again with save_to_disk"
        ) from None
    if not names or reordered:
        raise UserError(
            f"{where}: {'the rows have been reordered' if names else 'names no files'}; save the data set again with save_to_disk"
        )
    return names


def _open_arrow(data: bytes) -> Any:
    is_file = data.startswith(b"ARROW1")
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(pa.BufferReader(data))


def _rows(read: Callable[[], pa.Table], where: str, expected: str) -> Iterator[tuple[str, Row]]:
    try:
        table = read()
        table.validate(full=True)  # before any value is looked at: damaged offsets lead anywhere
        names, rows = table.column_names, table.to_pylist()
    except Exception as error:  # pyarrow has a dozen kinds for damaged files, among them TypeError and MemoryError
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UserError(
            f"{where}: cannot be read as {expected} ({reason}); the file is damaged, download or write it again"
        ) from None
    if len(set(names)) < len(names):
        raise UserError(f"{where}: two columns have the same name; rename one of {', '.join(names)}")
    yield from ((f"{where}, row {number}", row) for number, row in enumerate(rows, 1))
