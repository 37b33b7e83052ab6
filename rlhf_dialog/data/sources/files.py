"""Folders and archives -> the names and bytes of their files -> rows, by the file extension. Nothing is extracted to disk."""

import codecs
import csv
import io
import logging
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlhf_dialog.data.sources.record import RECIPES, kind
from rlhf_dialog.data.sources.rows import Cells, Row
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import is_below
from rlhf_dialog.json_files import FAULTS, parse_json

logger = logging.getLogger(__name__)
Numbered = Iterator[tuple[str, Row]]
SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
ENTERED = {"data", "default", "ijcnlp_dailydialog"}.union(*SPLIT_NAMES.values())  # the folders that are searched
HTML = (b"<!doctype", b"<html", b"<?xml", b"<head", b"<body", b"<script", b"<!--")
OF_ARCHIVES = ("from a zip archive", "download it again, or unpack it and give the folder")
MAX_BYTES = 2 << 30  # of all that is read from one archive, decompressed


class Folder:
    """A folder on disk; of its subfolders, only those that data sets are known to have are searched, and `names`."""

    def __init__(self, path: Path, names: tuple[str, ...] = ()):
        self.where, self.path, self.entered = str(path), path, ENTERED | {*names}
        self.names = sorted(self._list(""))

    def _list(self, below: str) -> list[str]:
        files = []
        try:
            for entry in os.scandir(self.path / below):
                name = below + entry.name
                if entry.name in self.entered and entry.is_dir() and name.count("/") < 3:
                    files += self._list(name + "/")
                else:
                    files.append(name)
        except OSError as error:
            raise UserError(f"{self.path / below}: cannot be read: {error.strerror}; give it read permission") from None
        return files

    def place(self, name: str) -> str:
        return str(self.path / name)

    def read(self, name: str) -> bytes:
        if not is_below(path := self.path / name, self.path):
            logger.warning("%s: is a link out of the folder and read as data: %s", path, path.resolve())
        return read_bytes(path)


class Archive:
    """A zip archive in memory. Raises UserError when it cannot be opened."""

    def __init__(self, data: bytes, where: str):
        self.where = where
        try:
            self.archive = zipfile.ZipFile(io.BytesIO(data))
            infos = [info for info in self.archive.infolist() if not info.is_dir()]
        except Exception as error:
            raise _damaged(where, error, *OF_ARCHIVES) from None
        members = {info.filename.replace("\\", "/"): info for info in infos}
        of_macos = {name for name in members if name.startswith("__MACOSX/") or name.split("/")[-1].startswith("._")}
        self.members = {name: info for name, info in members.items() if name not in of_macos}
        self.names = sorted(self.members)
        self.unpacked = 0  # bytes

    def place(self, name: str) -> str:
        return f"{self.where}/{name}"

    def read(self, name: str) -> bytes:
        where, info = self.place(name), self.members[name]
        self.unpacked += info.file_size
        if self.unpacked > MAX_BYTES:
            raise UserError(
                f"{where}: with it, {self.unpacked} bytes of the archive are unpacked, but the limit is {MAX_BYTES}; if you "
                "trust it, unpack it and give the folder"
            )
        try:
            data = self.archive.read(info)
        except Exception as error:
            raise _damaged(where, error, *OF_ARCHIVES) from None
        return without_html(data, where)


# `where` it is, the `names` of its files with / between the parts; `place` is the name of one in messages
Tree = Folder | Archive


def _damaged(where: str, error: Exception, what: str, remedy: str) -> UserError:
    """The error for a damaged file; zipfile and pyarrow raise a dozen kinds, among them TypeError and MemoryError."""
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return UserError(f"{where}: cannot be read {what} ({reason}); {remedy}")


def read_bytes(path: Path) -> bytes:
    """The bytes of a regular file. Raises UserError when it cannot be read, or may have no end (a pipe, a device)."""
    if os.path.exists(path) and not os.path.isdir(path) and not os.path.isfile(path):
        raise UserError(f"{path}: is a pipe, a device or a socket, not a file; copy its contents into a file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; give a file with read permission") from None
    return without_html(data, str(path))


def without_html(data: bytes, where: str) -> bytes:
    """Return `data` unchanged. Raises UserError for a web page, which some servers send with status 200 in place of a file."""
    if data[:1000].removeprefix(codecs.BOM_UTF8).lstrip().lower().startswith(HTML):
        raise UserError(
            f"{where}: this is an HTML page, not a data file; the download failed: delete it, and download the data again"
        )
    return data


def _read_parquet(data: bytes, where: str) -> Numbered:
    return _rows(lambda: pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False), where, "a parquet file")


def read_saved(tree: Tree, state: str) -> Numbered:
    """The rows of a saved Dataset: `state` is its state.json. Raises UserError when a file is missing or damaged."""
    paths: list[str] = []
    try:
        known = parse_json(tree.read(state))
        paths = [
            str(PurePosixPath(state).with_name(PurePosixPath(one["filename"]).name)) for one in known["_data_files"]
        ]
        reordered = known.get("_indices_data_files") or known.get("_indices_files")
        fault = "the rows have been reordered" if reordered else "" if paths else "names no files"
    except FAULTS:
        fault = "this is not the state.json of a saved data set"
    missing = [path for path in paths if path not in tree.names]
    if fault or missing:
        where = tree.place(state if fault else missing[0])
        raise UserError(f"{where}: {fault or 'the file is missing'}; save the data set again with save_to_disk")
    for path in paths:
        yield from _rows(partial(_read_arrow, tree.read(path)), tree.place(path), "an Arrow file")


def _read_arrow(data: bytes) -> pa.Table:
    is_file = data.startswith(b"ARROW1")
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(pa.BufferReader(data)).read_all()


def _rows(read: Callable[[], pa.Table], where: str, expected: str) -> Numbered:
    try:
        table = read()
        table.validate(full=True)  # before any value is looked at: damaged offsets lead anywhere
        names, rows = table.column_names, table.to_pylist()
    except Exception as error:
        raise _damaged(where, error, f"as {expected}", "the file is damaged, download or write it again") from None
    if len(set(names)) < len(names):
        raise UserError(f"{where}: two columns have the same name; rename one of {', '.join(names)}")
    yield from number_rows(rows, where)


def number_rows(rows: Iterable[Row], where: str) -> Numbered:
    """The rows, each with its place."""
    return ((f"{where}, row {number}", row) for number, row in enumerate(rows, 1))


def decode(data: bytes, where: str) -> str:
    """UTF-8 text without its byte order mark. Raises UserError with the line of the first byte that is not."""
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{where}, line {line}: is not UTF-8 ({error}); save the file as UTF-8") from None


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
    for place, row in KINDS[PurePosixPath(name).suffix.lower()](data, where):
        if not isinstance(row, dict):
            raise UserError(f"{place}: holds {kind(row)}, wanted an object like {{'dialog': [...], 'act': [...]}}")
        yield place, row


def _read_jsonl(data: bytes, where: str) -> Numbered:
    for number, line in enumerate(text_lines(data, where), 1):
        at = f"{where}, line {number}"
        yield at, _parse_json(line, at, "every line must be one JSON object")


def _read_json(data: bytes, where: str) -> Numbered:
    wanted = "a .json file must be one list of objects; if it has one object per line, name it .jsonl"
    rows = _parse_json(decode(data, where), where, wanted)
    if isinstance(rows, dict) and rows and all(isinstance(row, dict) for row in rows.values()):
        rows = [{"dialog_id": name} | row for name, row in rows.items()]  # the dialogues of MultiWOZ by their names
    if not isinstance(rows, list):
        raise UserError(f"{where}: holds {kind(rows)}, and {wanted}; {RECIPES}")
    yield from number_rows(rows, where)


def _parse_json(text: str, where: str, expected: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise UserError(f"{where}: is not JSON: {error}; {expected}") from None


def _read_csv(data: bytes, where: str, delimiter: str = ",") -> Numbered:
    """Cells as text, None for an empty one. A column without a name, such as the index that pandas writes, is left out."""
    reader = csv.reader(io.StringIO(decode(data, where), newline=""), delimiter=delimiter, strict=True)
    header, start = None, 0
    try:
        for cells in reader:
            where_row, start = f"{where}, line {start + 1}", reader.line_num
            if header is None:
                header = [cell.strip() for cell in cells]
                if twice := next((name for name in header if name and header.count(name) > 1), None):
                    raise UserError(f"{where}, line 1: the column '{twice}' is named twice; rename or remove one")
            elif len(cells) not in (0, len(header)):
                raise UserError(
                    f"{where_row}: the line has {len(cells)} cells, but the first line names {len(header)} columns"
                )
            elif cells:
                yield where_row, Cells({name: cell or None for name, cell in zip(header, cells, strict=True) if name})
    except csv.Error as error:
        raise UserError(f"{where}, line {start + 1}: {error}; check for a quotation mark that is not closed") from None


KINDS: dict[str, Callable[[bytes, str], Numbered]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": partial(_read_csv, delimiter="\t"),
    ".parquet": _read_parquet,
}
