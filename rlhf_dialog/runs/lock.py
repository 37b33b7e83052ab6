"""One process at a time in a run folder: a lock of the kernel, and a file that says who has it.

The kernel frees the lock when the process ends, also on a disk that several hosts share. Where the file system has no such
locks, a lock file that a kill left behind must be removed by hand; the error says so.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import FAULTS, load_json

logger = logging.getLogger(__name__)
LOCK = ".lock"
NO_FLOCK = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)


@dataclass(frozen=True)
class Owner:
    """The process that uses a run folder."""

    pid: int
    host: str
    since: str


def check_unlocked(folder: Path) -> None:
    """Raises UserError when another running process uses the folder; writes nothing."""
    path = folder / LOCK
    owner = _read_owner(path)
    if owner and (owner.pid, owner.host) == (os.getpid(), socket.gethostname()):
        return
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # there is no lock, or `lock_folder` will say what is wrong
        return
    try:
        _flock(folder, path, handle)
    finally:
        os.close(handle)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder for this process while the block runs. Creates it if needed, and removes it again if it stays empty.

    Raises UserError when another process uses it, or when it cannot be written. The lock of a dead process is replaced.
    """
    path = folder / LOCK
    created = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _take(folder, path)
    except OSError as error:
        raise UserError(f"run_dir: {folder} cannot be written: {error}") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if _is_this_file(handle, path):  # else the folder was moved, and the file is that of a later run
                path.unlink()
        with contextlib.suppress(OSError):
            for parent in created:
                parent.rmdir()  # which does nothing unless it is empty
        os.close(handle)


def open_lock(path: Path) -> int:
    """The handle of a lock file, which is made if needed. Raises OSError, also when it is a link."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = "is a link, which must be removed"
        raise


def _take(folder: Path, path: Path) -> int:
    """Write the lock file; returns its handle, which also holds a kernel lock."""
    while True:
        handle = open_lock(path)
        try:
            _flock(folder, path, handle)
            if _is_this_file(handle, path):  # else another process removed it meanwhile
                _replace_owner(folder, path, handle)
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _replace_owner(folder: Path, path: Path, handle: int) -> None:
    if owner := _read_owner(path):
        text = "%s: process %d, which used it since %s, has ended; its lock is replaced"
        logger.info(text, folder, owner.pid, owner.since)
    owner = Owner(os.getpid(), socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S"))
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(asdict(owner)).encode(), 0)


def _flock(folder: Path, path: Path, handle: int) -> None:
    """Take the kernel lock. Raises UserError when another process has it, or may have it on a file system without such locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(folder, _read_owner(path)) from None
    except OSError as error:
        if error.errno not in NO_FLOCK:
            raise
        if owner := _read_owner(path):
            raise _in_use(folder, owner, has_kernel_locks=False) from None


def _is_this_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _read_owner(path: Path) -> Owner | None:
    """The owner in the lock file; None if there is none, or if a kill left it incomplete."""
    try:
        content = load_json(path)
        return Owner(int(content["pid"]), str(content["host"]), str(content["since"]))
    except FAULTS:
        return None


def _in_use(folder: Path, owner: Owner | None, has_kernel_locks: bool = True) -> UserError:
    if owner is None:
        remedy = "choose another name with --experiment_name"
        return UserError("another process is starting in it", where=str(folder), remedy=remedy)
    what = f"in use by process {owner.pid} on {owner.host} since {owner.since}"
    remedy = f"wait until it ends, or remove {folder / LOCK} if you know that it has ended"
    if has_kernel_locks and owner.host == socket.gethostname():
        remedy = "wait until it ends, stop it, or choose another name with --experiment_name"
    return UserError(what, where=str(folder), remedy=remedy)
