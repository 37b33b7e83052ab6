"""Write files and folders completely or not at all: under a hidden name first, then renamed. Links are never followed."""

import errno
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from rlhf_dialog.errors import UserError

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM)
OF_LIBRARIES = re.compile("inline_container|iostream error|I/O error")  # what torch and safetensors say of a full disk
LITTER = 3600.0  # seconds after which a hidden file counts as left by a kill, where other processes may write too


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Fill a folder under a temporary name: it is renamed when the block ends, and removed when the block fails.

    During the swap, an existing folder of that name is moved to `.name.old`; after a kill, `repair_swaps` moves it back.
    Raises UserError when the folder cannot be written.
    """
    temporary, old = _hidden(folder, "tmp"), _hidden(folder, "old")
    try:
        _take_back(folder)
        with suppress(OSError):
            discard(temporary)
        temporary.mkdir(parents=True)
        yield temporary
        sync_folder(temporary)
        if folder.exists():
            folder.rename(old)
        temporary.rename(folder)
        _sync(folder.parent)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: cannot be written: {error}") from error
    finally:
        with suppress(OSError):
            _take_back(folder)
        shutil.rmtree(temporary, ignore_errors=True)


def repair_swaps(parent: Path, names: Iterable[str]) -> None:
    """Undo interrupted writes of these files and folders after a kill. Raises OSError."""
    for name in names:
        _take_back(parent / name)
        discard(_hidden(parent / name, "tmp"))
        _sweep(parent / name)


def _hidden(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.{ending}")


def _sweep(path: Path, age: float = 0.0) -> None:
    """Remove the hidden files of `atomic_file` that are at least `age` seconds old. Raises OSError."""
    for left in path.parent.glob(_hidden(Path(escape(str(path))), f"{'[0-9a-f]' * 8}.tmp").name):
        if time.time() - left.lstat().st_mtime >= age:
            left.unlink(missing_ok=True)


def discard(path: Path) -> None:
    """Remove a file, a folder, or a link but not what it leads to; nothing where there is none. Raises OSError."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _take_back(folder: Path) -> None:
    """Move `.name.old` back if there is no new folder of that name, else remove it."""
    old = _hidden(folder, "old")
    if old.is_dir() and not old.is_symlink() and not folder.exists():
        old.rename(folder)
    with suppress(OSError):
        discard(old)


def check_no_link(folder: Path) -> None:
    """Raises UserError when the path is a link."""
    if folder.is_symlink():
        raise UserError(
            "is a link, which may lead elsewhere", where=str(folder), remedy="put what it leads to in its place"
        )


def remove_whole(folder: Path) -> None:
    """Remove a folder so that a kill never leaves a partial folder under its name. Raises OSError, and UserError for a link."""
    check_no_link(folder)
    temporary = _hidden(folder, "tmp")
    discard(temporary)
    folder.rename(temporary)
    shutil.rmtree(temporary)


def sync_folder(folder: Path) -> None:
    """Have the disk hold the folder and all that is in it. Raises OSError."""
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def replace_json(path: Path, data: Any) -> None:
    """`write_json` in one atomic step. Raises UserError when the file cannot be written."""
    replace_file(path, json.dumps(data, indent=1) + "\n")


def replace_file(path: Path, text: str) -> None:
    """`replace_text` that also creates the folder. Raises UserError when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error}") from error


def replace_text(path: Path, text: str) -> None:
    """Write a file atomically: a reader sees the old text or the new text.

    Raises OSError, also when the path is a device or a pipe, which a new file would replace.
    """
    if is_special(path):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def atomic_file(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """A new, empty file under a random hidden name: it replaces `path` when the block ends, and is removed when it fails.

    A link at `path` is replaced itself. Raises OSError.
    """
    with suppress(OSError):
        _sweep(path, LITTER)
    temporary = _hidden(path, f"{secrets.token_hex(4)}.tmp")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode))
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    _sync(path.parent)


@contextmanager
def disk_errors_as_user_errors(folder: Path) -> Iterator[None]:
    """Turn what a full disk, a limit or a missing permission raises into a UserError: what cannot be written, and why.

    `folder` is named where the error names no file.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        raise UserError(f"{error.filename or folder}: cannot be written: {error.strerror}") from error
    except (SafetensorError, RuntimeError) as error:
        if not OF_LIBRARIES.search(str(error)):
            raise
        raise UserError(f"{folder}: cannot be written: the disk is full, or a limit was reached") from error


def is_special(path: Path) -> bool:
    """Whether the path exists and is neither a regular file nor a folder, but a device, a pipe or a socket."""
    return path.exists() and not path.is_file() and not path.is_dir()
