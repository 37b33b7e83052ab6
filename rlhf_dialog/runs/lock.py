"""One process at a time in a run folder: a lock of the kernel, and a file that says who has it and since when it was heard of."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import FAULTS, load_json

logger = logging.getLogger(__name__)
LOCK = ".lock"
NO_FLOCK = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)
BEAT = 30.0  # seconds between two heartbeats
SILENCE = 600  # seconds without a heartbeat after which a process on another host counts as ended


@dataclass(frozen=True)
class Owner:
    """The process that uses a run folder."""

    pid: int
    host: str
    process_start: str  # of the process, in kernel ticks: distinguishes it from a later one with the same number
    since: str
    heartbeat: int | None = None  # seconds of the epoch; None from a program that wrote none

    @property
    def silence(self) -> float | None:
        """Seconds since the last heartbeat."""
        return None if self.heartbeat is None else time.time() - self.heartbeat


def check_unlocked(folder: Path) -> None:
    """Raises UserError when another running process uses the folder; writes nothing."""
    owner = _read_owner(folder / LOCK)
    if owner and owner.pid != os.getpid() and not (_has_ended(owner) or _is_silent(owner)):
        raise _in_use(folder, owner)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder for this process while the block runs. Creates it if needed, and removes it again if it stays empty.

    Raises UserError when another process uses it, or when it cannot be written. The lock of a dead process is replaced, and so
    is that of another host that has been silent for ten minutes, where the file system has locks of the kernel.
    """
    path = folder / LOCK
    created = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, owner = _take(folder, path)
    except OSError as error:
        raise UserError(f"run_dir: {folder} cannot be written: {error}") from error
    ended = threading.Event()
    pulse = threading.Thread(target=_beat, args=(path, handle, owner, ended), daemon=True, name="heartbeat")
    pulse.start()
    try:
        yield
    finally:
        ended.set()
        pulse.join()
        with contextlib.suppress(OSError):
            if _is_this_file(handle, path):  # else the folder was moved, and the file is that of a later run
                path.unlink()
        with contextlib.suppress(OSError):
            for one in created:
                one.rmdir()  # which does nothing unless it is empty
        os.close(handle)


def _beat(path: Path, handle: int, owner: Owner, ended: threading.Event) -> None:
    """Renew the heartbeat until `ended`, unless another process has taken the file over meanwhile."""
    while not ended.wait(BEAT):
        with contextlib.suppress(OSError):  # the next beat may succeed
            now = _read_owner(path)
            if now and (now.pid, now.host, now.since) != (owner.pid, owner.host, owner.since):
                return
            _write(handle, replace(owner, heartbeat=int(time.time())))


def _take(folder: Path, path: Path) -> tuple[int, Owner]:
    """Write the lock file; returns its handle, which also holds a kernel lock."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            has_kernel_lock = _flock(folder, path, handle)
            if _is_this_file(handle, path):  # else another process removed it meanwhile
                return handle, _replace_owner(folder, path, handle, has_kernel_lock)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _replace_owner(folder: Path, path: Path, handle: int, has_kernel_lock: bool) -> Owner:
    owner = _read_owner(path)
    if owner and not (_has_ended(owner) or (has_kernel_lock and _is_silent(owner))):
        raise _in_use(folder, owner)
    if owner and _has_ended(owner):
        logger.info(
            "%s: process %d, which used it since %s, has ended; its lock is replaced", folder, owner.pid, owner.since
        )
    elif owner:
        minutes = int((owner.silence or 0) / 60)
        reason = f"has been silent for {minutes} minutes" if minutes >= 0 else f"has a clock {-minutes} minutes ahead"
        logger.info(
            "%s: process %d on %s, which used it since %s, %s; its lock is replaced",
            folder,
            owner.pid,
            owner.host,
            owner.since,
            reason,
        )
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    ours = Owner(os.getpid(), socket.gethostname(), _start_of(os.getpid()) or "", now, int(time.time()))
    os.ftruncate(handle, 0)
    _write(handle, ours)
    return ours


def _write(handle: int, owner: Owner) -> None:
    """One write at the start of the file; a later heartbeat has the same number of digits."""
    os.pwrite(handle, json.dumps(asdict(owner)).encode(), 0)


def _flock(folder: Path, path: Path, handle: int) -> bool:
    """Take the kernel lock; False on a file system without such locks. Raises UserError when another process has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(folder, _read_owner(path)) from None
    except OSError as error:
        if error.errno not in NO_FLOCK:
            raise
        return False
    return True


def _is_this_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _read_owner(path: Path) -> Owner | None:
    """The owner in the lock file; None if there is none, if a kill left it incomplete, or if its numbers are impossible."""
    try:
        found = load_json(path)
        pid, beat = int(found["pid"]), found.get("heartbeat")
        heartbeat = None if beat is None else int(beat)
        owner = Owner(pid, str(found["host"]), str(found["process_start"]), str(found["since"]), heartbeat)
    except (*FAULTS, OverflowError):
        return None
    return owner if 0 < pid < 1 << 31 and 0 <= (heartbeat or 0) < 1 << 53 else None


def _has_ended(owner: Owner) -> bool:
    """Whether the process has certainly ended: on this host, no process or only a later one has its number."""
    return owner.host == socket.gethostname() and _start_of(owner.pid) not in (owner.process_start, "")


def _is_silent(owner: Owner) -> bool:
    """Whether a process on another host, which cannot be looked up from here, has not been heard of for too long.

    A heartbeat as far in the future counts too: the clock of one of the hosts is wrong, or the file was changed.
    """
    return owner.host != socket.gethostname() and owner.silence is not None and abs(owner.silence) > SILENCE


def _start_of(pid: int) -> str | None:
    """Start of the process, in ticks since the host started; "" if it cannot be read, None if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return "" if _is_alive(pid) else None
    return None if fields[0] in "ZX" else fields[19]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _in_use(folder: Path, owner: Owner | None) -> UserError:
    if owner is None:
        return UserError(f"{folder}: another process is starting in it; choose another name with --experiment_name")
    text = f"{folder}: in use by process {owner.pid} on {owner.host} since {owner.since}; "
    if owner.host == socket.gethostname():
        return UserError(f"{text}wait until it ends, stop it, or choose another name with --experiment_name")
    remedy = f"or remove {folder / LOCK} if you know that it has ended"
    if owner.silence is None or _is_silent(owner):
        return UserError(f"{text}wait until it ends, {remedy}")
    silence = int(owner.silence)
    return UserError(
        f"{text}it was heard of {max(silence, 0)} s ago. If it has ended, the folder is free in {SILENCE - silence} s: start "
        f"again then, {remedy}"
    )
