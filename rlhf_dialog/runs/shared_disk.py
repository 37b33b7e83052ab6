"""Whether every rank of a run writes and reads the same run folder, found out before anything is loaded."""

import secrets
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs.lock import lock_folder

PROBE = ".shared_disk."  # the beginning of a file's name; the number of a rank is its end
PATIENCE = 10.0  # seconds; a network disk shows another host's new file late
REMEDY = "the run folder must be on a disk that all hosts see and may write to: set run_dir to a folder there"


def check_shared(folder: Path, world: World) -> None:
    """Rank 0 writes a word into the run folder, every rank reads it and writes it back; nothing is left.

    With one process it does nothing. Rank 0 has the lock of the folder meanwhile. Raises UserError on all ranks when one of them
    cannot read or write the folder, or has another folder of that name.
    """
    if world.size == 1:
        return
    with ExitStack() as stack:
        world.on_main(lambda: stack.enter_context(lock_folder(folder)))
        if world.is_main:
            stack.callback(_remove_probes, folder)
        word = world.on_main(lambda: _begin(folder))
        hosts = world.gather(socket.gethostname())
        with world.fail_together():
            if not world.is_main:
                _check_word(folder, word, 0, hosts[0])
                _write(folder, world.rank, word)

        def check_all() -> None:
            for rank, host in enumerate(hosts):
                _check_word(folder, word, rank, host)

        world.on_main(check_all)


def _begin(folder: Path) -> str:
    _remove_probes(folder)  # those of a run that was killed
    word = secrets.token_hex(16)
    _write(folder, 0, word)
    return word


def _write(folder: Path, rank: int, word: str) -> None:
    try:
        (folder / f"{PROBE}{rank}").write_text(word, encoding="utf-8")
    except OSError as error:
        what = f"{folder} cannot be written on {socket.gethostname()}: {error.strerror}"
        raise UserError(f"run_dir: {what}; {REMEDY}") from error


def _check_word(folder: Path, word: str, rank: int, host: str) -> None:
    """Raises UserError when the file of `rank`, which is on `host`, does not show the word here within `PATIENCE`."""
    end = time.monotonic() + PATIENCE
    while True:
        with suppress(OSError, UnicodeDecodeError):
            if (folder / f"{PROBE}{rank}").read_text(encoding="utf-8") == word:
                return
        if time.monotonic() >= end:
            what = f"{folder} on {socket.gethostname()} does not show what rank {rank} has written there on {host}"
            raise UserError(f"run_dir: {what}; {REMEDY}")
        time.sleep(0.1)


def _remove_probes(folder: Path) -> None:
    for path in folder.glob(f"{PROBE}*"):
        with suppress(OSError):
            path.unlink()
