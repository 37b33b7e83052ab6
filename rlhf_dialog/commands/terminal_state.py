"""The terminal's person: a random id that is kept between dialogues, and the lines that are typed."""

import contextlib
import logging
import os
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

from rlhf_dialog.errors import UserError

logger = logging.getLogger(__name__)


def state_folder() -> Path:
    """`$XDG_STATE_HOME/rlhf-dialog`, by default in ~/.local/state; it may not exist yet.

    Raises FileNotFoundError where the person has no home folder, as some containers' people.
    """
    given = os.environ.get("XDG_STATE_HOME", "")
    folder = given if os.path.isabs(given) else os.path.expanduser("~/.local/state")
    if not os.path.isabs(folder):
        raise FileNotFoundError("there is no home folder; set HOME or XDG_STATE_HOME")
    return Path(folder) / "rlhf-dialog"


def terminal_person() -> str:
    """The random id of who uses this terminal; it is kept in the file `person`, which only they can read.

    Where the file cannot be kept, the id is new each time, and a warning says so.
    """
    try:
        path = state_folder() / "person"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), _create_file(path) as file:
            os.write(file, f"{secrets.token_hex(16)}\n".encode())
        person = path.read_text(encoding="ascii").strip()
        if not re.fullmatch(r"[0-9a-f]{32}", person):
            raise ValueError(f"{path} does not hold 32 hexadecimal digits; remove it")
    except (OSError, ValueError) as error:
        logger.warning("your id cannot be kept: %s; what you say now cannot be found later as yours", error)
        return secrets.token_hex(16)
    return person


@contextlib.contextmanager
def _create_file(path: Path) -> Iterator[int]:
    """A new file that only its owner can read, whole when it gets its name. Raises FileExistsError."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        yield handle
        os.fsync(handle)
        os.link(temporary, path)
    finally:
        os.close(handle)
        temporary.unlink()


def edit_lines() -> None:
    """From now on, a line can be edited while it is typed, and those before come with the arrows; they are not kept on disk."""
    if is_terminal():
        with contextlib.suppress(ImportError):  # Windows lacks it
            import readline  # noqa: F401  `input` uses it once it is loaded


def forget_lines() -> None:
    """Remove the lines that were typed, also the file in which earlier versions kept them. Raises UserError when it stays."""
    if readline := sys.modules.get("readline"):
        readline.clear_history()
    try:
        with contextlib.suppress(FileNotFoundError):
            (state_folder() / "chat_history").unlink()
    except OSError as error:
        raise UserError(f"the lines that you typed cannot be removed: {error}; remove the file") from error


def is_terminal() -> bool:
    """Whether a person types and reads, and not a pipe or a file."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
