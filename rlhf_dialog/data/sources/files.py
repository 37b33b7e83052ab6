"""Folders and archives -> their files -> tables, by the file extension. Nothing is extracted to disk.

A table gives its rows as often as they are asked for, from any of its keys on. Tables of files on disk keep no row in memory,
except those of JSON arrays and of cells as text (CSV).
"""

import bisect
import codecs
import csv
import io
import logging
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from rlhf_dialog.data.sources.record import RECIPES, kind
from rlhf_dialog.data.sources.rows import Cells, Row
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import is_below
from rlhf_dialog.json_files import FAULTS, parse_json

logger = logging.getLogger(__name__)
Numbered = Iterator[tuple[str, Row]]
Keyed = Iterator[tuple[int, str, Row]]  # the key of a row in its table, its place for messages, the row
File = Path | bytes  # on disk, or out of an archive
ROWS_AT_ONCE = 1000  # that are made of a columnar file
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

    def file(self, name: str) -> File:
        if not is_below(path := self.path / name, self.path):
            logger.warning("%s: is a link out of the folder and read as data: %s", path, path.resolve())
        return path


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

    def file(self, name: str) -> File:
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


def open_file(file: File) -> IO[bytes]:
    """A regular file to read. Raises UserError when it cannot be read, or may have no end (a pipe, a device)."""
    if isinstance(file, bytes):
        return io.BytesIO(file)
    if os.path.exists(file) and not os.path.isdir(file) and not os.path.isfile(file):
        raise UserError(f"{file}: is a pipe, a device or a socket, not a file; copy its contents into a file")
    try:
        opened = file.open("rb")
        without_html(opened.read(1000), str(file))
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}; give a file with read permission") from None
    opened.seek(0)
    return opened


def read_bytes(file: File) -> bytes:
    """All bytes of a file. Raises UserError as `open_file`."""
    if isinstance(file, bytes):
        return file
    with open_file(file) as opened:
        return opened.read()


class Unchanged:
    """A file on disk as it was when it was read first. `check` raises UserError when it has another size or time of change."""

    def __init__(self, file: File):
        self.file, self.state = file, self._state(file)

    @staticmethod
    def _state(file: File) -> tuple[int, int] | None:
        if isinstance(file, bytes):
            return None
        try:
            found = os.stat(file)
        except OSError as error:
            raise UserError(f"{file}: cannot be read: {error.strerror}; give a file with read permission") from None
        return found.st_size, found.st_mtime_ns

    def check(self) -> None:
        if self._state(self.file) != self.state:
            raise UserError(
                f"{self.file!s}: has changed since this program began to read it; restore it, or start again"
            )


class Table(Protocol):
    """The rows of one or more files; all keys are below `size`, in the order of the rows."""

    size: int

    def rows(self, start: int = 0) -> Keyed:
        """The rows from that with the key `start` on."""


class Loaded:
    """Rows in memory; a key is the number of a row."""

    def __init__(self, rows: Numbered):
        self.placed = list(rows)
        self.size = len(self.placed)

    def rows(self, start: int = 0) -> Keyed:
        return ((key, *self.placed[key]) for key in range(start, self.size))


class Joined:
    """The tables of the parts of a split, one behind the other."""

    def __init__(self, tables: Sequence[Table]):
        self.tables, self.starts = tables, [0, *accumulate(table.size for table in tables)]
        self.size = self.starts[-1]

    def rows(self, start: int = 0) -> Keyed:
        for number in range(bisect.bisect_right(self.starts, start) - 1, len(self.tables)):
            first = self.starts[number]
            for key, place, row in self.tables[number].rows(max(0, start - first)):
                yield first + key, place, row


class Lines:
    """The lines of a file of UTF-8, stripped; the key of one is the place of its first byte, after a byte order mark."""

    def __init__(self, file: File, where: str):
        self.file, self.where, self.unchanged = file, where, Unchanged(file)
        with open_file(file) as opened:
            self.begin = len(codecs.BOM_UTF8) if opened.read(3) == codecs.BOM_UTF8 else 0
            self.size = opened.seek(0, os.SEEK_END)

    def lines(self, start: int = 0) -> Iterator[tuple[int, str, str]]:
        """Raises UserError when there is none, one is blank or no UTF-8, and when the file has changed."""
        self.unchanged.check()
        with open_file(self.file) as opened:
            key = opened.seek(max(start, self.begin))
            number = 0
            for number, data in enumerate(opened, 1):
                place = f"{self.where}, line {number}" if start <= self.begin else f"{self.where}, byte {key}"
                try:
                    text = data.decode("utf-8").strip()
                except UnicodeDecodeError as error:
                    raise UserError(f"{place}: is not UTF-8 ({error}); save the file as UTF-8") from None
                if text:
                    yield key, place, text
                elif data.endswith(b"\n"):
                    raise UserError(f"{place}: the line is blank; every line must hold one dialogue, remove it")
                else:
                    number -= 1
                key += len(data)
            if number == 0 and start <= self.begin:
                raise UserError(f"{self.where}: the file is empty; it needs one dialogue per line")


class JsonLines(Lines):
    """One JSON object per line."""

    def rows(self, start: int = 0) -> Keyed:
        for key, place, line in self.lines(start):
            row = _parse_json(line, place, "every line must be one JSON object")
            yield key, place, _checked(row, place)


class Columnar:
    """The rows of a parquet file, of which one row group at a time is in memory, or of an Arrow file, which is mapped.

    A key is the number of a row.
    """

    def __init__(self, file: File, where: str, expected: str, open_groups: "Callable[[Any], Groups]"):
        self.where, self.expected, self.unchanged = where, expected, Unchanged(file)
        source = pa.BufferReader(file) if isinstance(file, bytes) else file
        open_file(file).close()
        try:
            self.read_group, sizes, names = open_groups(source)
        except Exception as error:
            raise self._damaged(error) from None
        if len(set(names)) < len(names):
            raise UserError(f"{where}: two columns have the same name; rename one of {', '.join(names)}")
        self.starts = [0, *accumulate(sizes)]
        self.size = self.starts[-1]
        self._group: tuple[int, Any] = (-1, None)

    def _damaged(self, error: Exception) -> UserError:
        return _damaged(self.where, error, f"as {self.expected}", "the file is damaged, download or write it again")

    def _read(self, number: int) -> Any:
        if self._group[0] != number:
            table = self.read_group(number)
            table.validate(full=True)  # before any value is looked at: damaged offsets lead anywhere
            self._group = (number, table)
        return self._group[1]

    def rows(self, start: int = 0) -> Keyed:
        self.unchanged.check()
        key, count = start, 1 if start else ROWS_AT_ONCE
        while key < self.size:
            number = bisect.bisect_right(self.starts, key) - 1
            try:
                rows = self._read(number).slice(key - self.starts[number], count).to_pylist()
            except Exception as error:
                raise self._damaged(error) from None
            for row in rows:
                yield key, f"{self.where}, row {key + 1}", row
                key += 1
            count = ROWS_AT_ONCE


Groups = tuple[Callable[[int], Any], Sequence[int], Sequence[str]]  # what reads one, their numbers of rows, the columns


def _parquet_groups(source: Any) -> Groups:
    file = pq.ParquetFile(source)
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    return partial(file.read_row_group, use_threads=False), sizes, file.schema_arrow.names


def _arrow_groups(source: Any) -> Groups:
    mapped = pa.memory_map(str(source)) if isinstance(source, Path) else source
    is_file = bytes(mapped.read(6)) == b"ARROW1"
    mapped.seek(0)
    table = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(mapped).read_all()
    return lambda number: table, [table.num_rows], table.column_names


def without_html(data: bytes, where: str) -> bytes:
    """Return `data` unchanged. Raises UserError for a web page, which some servers send with status 200 in place of a file."""
    if data[:1000].removeprefix(codecs.BOM_UTF8).lstrip().lower().startswith(HTML):
        raise UserError(
            f"{where}: this is an HTML page, not a data file; the download failed: delete it, and download the data again"
        )
    return data


def read_saved(tree: Tree, state: str) -> Table:
    """The table of a saved Dataset: `state` is its state.json. Raises UserError when a file is missing or damaged."""
    paths: list[str] = []
    try:
        known = parse_json(read_bytes(tree.file(state)))
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
    return Joined([Columnar(tree.file(path), tree.place(path), "an Arrow file", _arrow_groups) for path in paths])


def decode(data: bytes, where: str) -> str:
    """UTF-8 text without its byte order mark. Raises UserError with the line of the first byte that is not."""
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{where}, line {line}: is not UTF-8 ({error}); save the file as UTF-8") from None


def open_table(name: str, file: File, where: str) -> Table:
    """The rows of the file `name`. Raises UserError, now or when they are read, when the data does not match the extension."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix == ".jsonl":
        return JsonLines(file, where)
    if suffix == ".parquet":
        return Columnar(file, where, "a parquet file", _parquet_groups)
    return Loaded((place, _checked(row, place)) for place, row in _IN_MEMORY[suffix](read_bytes(file), where))


def _checked(row: Any, place: str) -> Row:
    if not isinstance(row, dict):
        raise UserError(f"{place}: holds {kind(row)}, wanted an object like {{'dialog': [...], 'act': [...]}}")
    return row


def _read_json(data: bytes, where: str) -> Numbered:
    wanted = "a .json file must be one list of objects; if it has one object per line, name it .jsonl"
    rows = _parse_json(decode(data, where), where, wanted)
    if isinstance(rows, dict) and rows and all(isinstance(row, dict) for row in rows.values()):
        rows = [{"dialog_id": name} | row for name, row in rows.items()]  # the dialogues of MultiWOZ by their names
    if not isinstance(rows, list):
        raise UserError(f"{where}: holds {kind(rows)}, and {wanted}; {RECIPES}")
    yield from ((f"{where}, row {number}", row) for number, row in enumerate(rows, 1))


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


_IN_MEMORY: dict[str, Callable[[bytes, str], Numbered]] = {
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": partial(_read_csv, delimiter="\t"),
}
KINDS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
