"""One process at a time in a run folder: a lock of the kernel, on a file that says who has it.

The kernel frees the lock when the process ends, also on a disk that several hosts share.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_dialog.errors import UserError

logger = logging.getLogger(__name__)
LOCK = ".lock"
NO_FLOCK = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)  # of a file system without locks


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder for this process while the block runs. Creates it if needed, and removes it again if it stays empty.

    Raises UserError when another process uses it, or when it cannot be written.
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
    """Lock the file, and write this process into it; returns its handle, with which the lock ends."""
    while True:
        handle = open_lock(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(handle, 200, 0).decode(errors="replace") or "another process"
            os.close(handle)
            remedy = "wait until it ends, stop it, or choose another name with --experiment_name"
            raise UserError(f"in use by {owner}", where=str(folder), remedy=remedy) from None
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
            logger.warning("%s: this disk has no locks; use the folder from one process only", folder)
        if _is_this_file(handle, path):  # else another process removed it meanwhile
            os.ftruncate(handle, 0)
            owner = f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
            os.pwrite(handle, owner.encode(), 0)
            return handle
        os.close(handle)


def _is_this_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
