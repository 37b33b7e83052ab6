"""What the terminal keeps of its person between dialogues: a random id, and the lines that were typed."""

import contextlib
import logging
import os
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)
MAX_LINES = 1000  # of the history


def state_folder() -> Path:
    """`$XDG_STATE_HOME/rlhf-dialog`, by default in ~/.local/state; it may not exist yet."""
    given = os.environ.get("XDG_STATE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path("~/.local/state").expanduser()) / "rlhf-dialog"


def terminal_person() -> str:
    """The random id of who uses this terminal; it is kept in the file `person`, which only they can read.

    Where the file cannot be kept, the id is new each time, and a warning says so.
    """
    path = state_folder() / "person"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), _created(path) as file:
            os.write(file, f"{secrets.token_hex(16)}\n".encode())
        found = path.read_text(encoding="ascii").strip()
        if not re.fullmatch(r"[0-9a-f]{32}", found):
            raise ValueError("it does not hold 32 hexadecimal digits; remove it")
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be kept: %s; what you say now cannot be found later as yours", path, error)
        return secrets.token_hex(16)
    return found


@contextlib.contextmanager
def _created(path: Path) -> Iterator[int]:
    """A new file that only its owner can read, whole when it gets its name. Raises FileExistsError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        yield handle
        os.fsync(handle)
        os.link(temporary, path)
    finally:
        os.close(handle)
        temporary.unlink()


@contextlib.contextmanager
def line_editing() -> Iterator[None]:
    """Where standard input and output are a terminal, lines can be edited in the block; those typed before come with the arrows.

    They are kept in the file `chat_history`, which only its owner can read.
    """
    readline = _readline()
    if readline is None:
        yield
        return
    path = state_folder() / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a history is not worth an error
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            readline.set_history_length(MAX_LINES)
            readline.write_history_file(path)
            path.chmod(0o600)


def is_terminal() -> bool:
    """Whether a person types and reads, and not a pipe or a file."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def _readline():  # type: ignore[no-untyped-def]  # the module, which Windows lacks
    if not is_terminal():
        return None
    try:
        import readline
    except ImportError:
        return None
    return readline
