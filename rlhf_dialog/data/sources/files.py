"""The bytes of one data file -> rows, by its file extension."""

import codecs
import csv
import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlhf_dialog.data.sources.record import kind
from rlhf_dialog.data.sources.rows import Cells, Row
from rlhf_dialog.data.sources.trees import Tree
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import FAULTS, parse_json

Numbered = Iterator[tuple[str, Row]]


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


def decode(data: bytes, where: str) -> str:
    """UTF-8 text without its byte order mark. Raises UserError with line and column of the first byte that is not."""
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line, column = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        byte = f"byte 0x{data[error.start]:02x} at column {column}"
        raise UserError(f"{where}, line {line}: {byte} is not UTF-8; save the file as UTF-8") from None


def text_lines(data: bytes, where: str) -> list[str]:
    """The lines, stripped. Raises UserError when there are none or one is blank."""
    lines = decode(data, where).split("\n")
    if not lines[-1].strip():
        lines.pop()
    if not lines:
        raise UserError(f"{where}: the file is empty; it needs one dialogue per line")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise UserError(f"{where}, line {number}: the line is blank; every line must hold one dialogue, remove it")
    return [line.strip() for line in lines]


def read_rows(name: str, data: bytes, where: str) -> Numbered:
    """The rows of the file `name`, each with its place. Raises UserError when the data does not match the extension."""
    return KINDS[PurePosixPath(name).suffix.lower()](data, where)


def _read_jsonl(data: bytes, where: str) -> Numbered:
    for number, line in enumerate(text_lines(data, where), 1):
        at = f"{where}, line {number}"
        yield at, _an_object(_parse_json(line, at, "every line must be one JSON object"), at)


def _read_json(data: bytes, where: str) -> Numbered:
    text = decode(data, where)
    if not text.strip():
        raise UserError(f"{where}: the file is empty; it needs a list of objects")
    rows = _parse_json(
        text, where, "a .json file must be one list of objects; if it has one object per line, name it .jsonl"
    )
    if not isinstance(rows, list):
        raise UserError(
            f"{where}: holds {kind(rows)}, wanted a list of objects; if it has one object per line, name it .jsonl"
        )
    for number, row in enumerate(rows, 1):
        at = f"{where}, row {number}"
        yield at, _an_object(row, at)


def _parse_json(text: str, where: str, expected: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise UserError(f"{where}: is not JSON: {error}; {expected}") from None


def _an_object(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise UserError(f"{where}: holds {kind(row)}, wanted an object like {{'dialog': [...], 'act': [...]}}")
    return row


def _read_csv(data: bytes, where: str, delimiter: str = ",") -> Numbered:
    """Cells as text, None for an empty one. A column without a name, such as the index that pandas writes, is left out."""
    reader = csv.reader(io.StringIO(decode(data, where), newline=""), delimiter=delimiter, strict=True)
    header, start = None, 0
    try:
        for cells in reader:
            where_row, start = f"{where}, line {start + 1}", reader.line_num
            if header is None:
                header = _header(cells, where, delimiter)
            elif len(cells) not in (0, len(header)):
                raise UserError(
                    f"{where_row}: the line has {len(cells)} cells, but the first line names {len(header)} columns"
                )
            elif cells:
                yield where_row, Cells({name: cell or None for name, cell in zip(header, cells, strict=True) if name})
    except csv.Error as error:
        raise UserError(f"{where}, line {start + 1}: {error}; check for a quotation mark that is not closed") from None


def _header(cells: list[str], where: str, delimiter: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    if len(names) < 2 and any(mark in cell for mark in ",;\t" for cell in names):
        wanted = "tabs" if delimiter == "\t" else "commas"
        raise UserError(f"{where}, line 1: there is only one column, '{names[0]:.60}'; separate the cells by {wanted}")
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice:
        raise UserError(f"{where}, line 1: the column '{twice}' is named twice; rename or remove one")
    return names


KINDS: dict[str, Callable[[bytes, str], Numbered]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": partial(_read_csv, delimiter="\t"),
    ".parquet": read_parquet,
}
