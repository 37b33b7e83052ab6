"""Write files and folders completely or not at all: under a hidden name first, then renamed."""

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from rlhf_dialog.errors import UserError


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Fill a folder under a temporary name: it is renamed when the block ends, and removed when the block fails.

    During the swap, an existing folder of that name is moved to `.name.old`; after a kill, `repair_swaps` moves it back.
    Raises UserError when the folder cannot be written.
    """
    temporary, old = _hidden(folder, "tmp"), _hidden(folder, "old")
    try:
        _take_back(folder)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            _sync(path)
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
        temporary = _hidden(parent / name, "tmp")
        shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink(missing_ok=True)


def _hidden(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.{ending}")


def _take_back(folder: Path) -> None:
    """Move `.name.old` back if there is no new folder of that name, else remove it."""
    old = _hidden(folder, "old")
    if old.is_dir() and not folder.exists():
        old.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def remove_whole(folder: Path) -> None:
    """Remove a folder so that a kill never leaves a partial folder under its name. Raises OSError."""
    temporary = _hidden(folder, "tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    folder.rename(temporary)
    shutil.rmtree(temporary)


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
    temporary = _hidden(path, "tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        _sync(temporary)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def is_special(path: Path) -> bool:
    """Whether the path exists and is neither a regular file nor a folder, but a device, a pipe or a socket."""
    return path.exists() and not path.is_file() and not path.is_dir()
