"""The folder of a run: checks whether it is free, locks it, and repairs it after a kill."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rlhf_dialog.atomic_files import mend_swaps, remove_whole
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs.branches import ABANDONED, check_metrics, chosen_checkpoint
from rlhf_dialog.runs.checkpoint import finish_saving, newest_checkpoint
from rlhf_dialog.runs.tracking import read_metrics

logger = logging.getLogger(__name__)
RUN_FILES = (  # in the order of removal: without checkpoints, nothing resumes a partly removed run
    "checkpoints",
    "agent",
    "best_agent",
    "evaluation.json",
    "error.log",
    "tensorboard",
    "wandb",
    "metrics.jsonl",
    "config.yaml",
)
LOCK = ".lock"
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM)
NO_FLOCK = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)


def holds_run(folder: Path) -> bool:
    """Whether the folder contains results of a run, which must not be lost."""
    metrics = folder / "metrics.jsonl"
    finished_something = metrics.is_file() and metrics.stat().st_size > 0
    return finished_something or any((folder / name).exists() for name in ("agent", "checkpoints", "evaluation.json"))


def check_folder(
    folder: Path, overwrite: bool, resume: bool, save_interval: int, resume_from: str | None = None
) -> None:
    """Raises UserError when a run must not start (or continue) in the folder."""
    if holds_run(folder) and not (overwrite or resume):
        raise UserError(
            f"{folder}: already contains a run; replace it with --overwrite, continue it with --resume, or choose another "
            "name with --experiment_name"
        )
    if resume:
        source = chosen_checkpoint(folder / "checkpoints", resume_from)
        _check_beginning(folder, save_interval) if source is None else check_metrics(folder, source)
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(f"run_dir: {folder} cannot be written: {existing} is not a folder that you may write to")


def _check_beginning(folder: Path, save_interval: int) -> None:
    """Without a checkpoint, only a run that was killed before its first one may restart. Raises UserError otherwise."""
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder}: contains no checkpoint to resume from; start without --resume")
    metrics = folder / "metrics.jsonl"
    lines = len(read_metrics(metrics)) if metrics.is_file() else 0
    if lines > save_interval or (folder / "agent").exists():
        raise UserError(
            f"{folder}: contains a run of {lines} iterations, but no checkpoint to resume from; replace it with --overwrite, or "
            "choose another name with --experiment_name"
        )


def check_source(source: Path, folder: Path) -> None:
    """Raises UserError when a new run in `folder` cannot start with the weights of the run in `source`."""
    if source.absolute() == folder.absolute():
        raise UserError(
            f"--resume_weights_only: {source} is this run's own folder; give the new run another name with --experiment_name"
        )
    if newest_checkpoint(source / "checkpoints") is None:
        raise UserError(
            f"--resume_weights_only: {source} contains no checkpoint; choose the folder of a run that has one"
        )


def confirm_overwrite(folder: Path) -> None:
    """Ask the user to type the folder's name before its run is replaced; without a terminal --overwrite is enough.

    Raises UserError for any other answer.
    """
    if not holds_run(folder) or sys.stdin is None or not sys.stdin.isatty():
        return
    sys.stderr.write(f"{folder} contains a run, which --overwrite removes. Type {folder.name} to continue: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != folder.name:
        raise UserError(f"{folder}: not confirmed, so nothing was removed; choose another name with --experiment_name")


def clear(folder: Path) -> None:
    """Remove the files of a run, and nothing else. Raises OSError."""
    for name in RUN_FILES:
        path = folder / name
        remove_whole(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def mend(folder: Path) -> None:
    """After a kill, finish or undo what it interrupted: swaps of folders, temporary files, and a save."""
    mend_swaps(folder, RUN_FILES)
    for place in (folder / "checkpoints", folder / "checkpoints" / ABANDONED):
        mend_swaps(place, {path.name.removeprefix(".").rsplit(".", 1)[0] for path in place.glob(".*.*")})
    finish_saving(folder / "checkpoints")


def folder_beside(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder next to the future run folder, on the same disk."""
    beside = next(parent for parent in folder.absolute().parents if parent.exists())
    try:
        return tempfile.TemporaryDirectory(prefix=".smoke_", dir=beside if os.access(beside, os.W_OK) else None)
    except OSError as error:
        raise UserError(f"run_dir: {folder} cannot be written: {error}") from error


@contextmanager
def disk_errors_told(folder: Path) -> Iterator[None]:
    """Turn errors of a full disk, a limit or a missing permission into a UserError with file and reason."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        raise UserError(f"{error.filename or folder}: cannot be written: {error.strerror}") from error


@dataclass(frozen=True)
class Owner:
    """The process that uses a run folder."""

    pid: int
    host: str
    process_start: str  # of the process, in kernel ticks: distinguishes it from a later one with the same number
    since: str


def check_unlocked(folder: Path) -> None:
    """Raises UserError when another running process uses the folder; writes nothing."""
    owner = _read_owner(folder / LOCK)
    if owner and owner.pid != os.getpid() and not _is_stale(owner):
        raise _in_use(folder, owner)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder for this process while the block runs. Creates it if needed, and removes it again if it stays empty.

    Raises UserError when another process uses it, or when it cannot be written. The lock of a dead process is replaced.
    """
    path, is_new = folder / LOCK, not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _take(folder, path)
    except OSError as error:
        raise UserError(f"run_dir: {folder} cannot be written: {error}") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
            if is_new:
                folder.rmdir()  # which does nothing unless it is empty
        os.close(handle)


def _take(folder: Path, path: Path) -> int:
    """Write the lock file; returns its handle, which also holds a kernel lock."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _flock(handle):
                raise _in_use(folder, _read_owner(path))
            if _is_this_file(handle, path):  # else another process removed it meanwhile
                _replace_owner(folder, path, handle)
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _replace_owner(folder: Path, path: Path, handle: int) -> None:
    owner = _read_owner(path)
    if owner and not _is_stale(owner):
        raise _in_use(folder, owner)
    if owner:
        logger.info(
            "%s: process %d, which used it since %s, has ended; its lock is replaced", folder, owner.pid, owner.since
        )
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    ours = Owner(os.getpid(), socket.gethostname(), _start_of(os.getpid()) or "", now)
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(asdict(ours)).encode(), 0)


def _flock(handle: int) -> bool:
    """Whether no other process has the kernel lock; True on a file system without such locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_FLOCK:
            raise
    return True


def _is_this_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _read_owner(path: Path) -> Owner | None:
    """The owner in the lock file; None if there is none, or if a kill left it incomplete."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Owner(int(found["pid"]), str(found["host"]), str(found["process_start"]), str(found["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_stale(owner: Owner) -> bool:
    """Whether the process has certainly ended: on this host, no process or only a later one has its number."""
    return owner.host == socket.gethostname() and _start_of(owner.pid) not in (owner.process_start, "")


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
    text = f"{folder}: in use by process {owner.pid} on {owner.host} since {owner.since}; wait until it ends, "
    if owner.host != socket.gethostname():
        return UserError(f"{text}or remove {folder / LOCK} if you know that it has ended")
    return UserError(f"{text}stop it, or choose another name with --experiment_name")
