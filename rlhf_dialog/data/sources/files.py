"""The bytes of one data file -> rows, by its file extension; parquet is read in `tables`."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from rlhf_dialog.data.sources.record import kind
from rlhf_dialog.data.sources.rows import Cells, Row
from rlhf_dialog.data.sources.tables import read_parquet
from rlhf_dialog.data.sources.text import decode, text_lines
from rlhf_dialog.errors import UserError

Numbered = Iterator[tuple[str, Row]]


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
        return json.loads(text)
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
