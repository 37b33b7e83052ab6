"""One interface to folders and zip archives: the file names, and the bytes of each. Nothing is extracted to disk."""

import codecs
import io
import logging
import os
import zipfile
from pathlib import Path
from typing import Protocol

from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import is_below

logger = logging.getLogger(__name__)
SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
ENTERED = {"data", "default", "ijcnlp_dailydialog"}.union(*SPLIT_NAMES.values())  # the folders that are searched
HTML = (b"<!doctype", b"<html", b"<?xml", b"<head", b"<body", b"<script", b"<!--")
MAX_BYTES = 2 << 30  # of all that is read from one archive, decompressed


class Tree(Protocol):
    """A folder or an archive: `where` it is, and the `names` of its files with / between the parts."""

    where: str
    names: list[str]

    def place(self, name: str) -> str:
        """The name of the file in messages."""

    def read(self, name: str) -> bytes:
        """The bytes of one of `names`. Raises UserError when they cannot be read."""


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
            raise _damaged_archive(where, error) from None
        members = {info.filename.replace("\\", "/"): info for info in infos}
        of_macos = {name for name in members if name.startswith("__MACOSX/") or name.split("/")[-1].startswith("._")}
        self.members = {name: info for name, info in members.items() if name not in of_macos}
        self.names = sorted(self.members)
        self.unpacked = 0  # bytes

    def place(self, name: str) -> str:
        return f"{self.where}/{name}"

    def read(self, name: str) -> bytes:
        where, info = self.place(name), self.members[name]
        if info.flag_bits & 1:
            raise UserError(
                f"{where}: the file is encrypted; unpack the archive with its password, and give the folder"
            )
        self.unpacked += info.file_size
        if self.unpacked > MAX_BYTES:
            raise UserError(
                f"{where}: unpacked, it has {info.file_size} bytes, and with what was read before {self.unpacked}, but the limit "
                f"of an archive is {MAX_BYTES}; if you trust it, unpack it and give the folder"
            )
        try:
            data = self.archive.read(info)
        except Exception as error:
            raise _damaged_archive(where, error) from None
        return without_html(data, where)


def _damaged_archive(where: str, error: Exception) -> UserError:
    """The error for a damaged archive; zipfile raises many kinds of exceptions that mean the same to the user."""
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return UserError(
        f"{where}: cannot be read from a zip archive ({reason}); the archive is damaged, download it again"
    )


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
