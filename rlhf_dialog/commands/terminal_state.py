"""The terminal's person: a random id that is kept between dialogues, and the lines that are typed."""

import contextlib
import logging
import os
import re
import secrets
import sys
from pathlib import Path

logger = logging.getLogger(__name__)


def terminal_person() -> str:
    """The random id of who uses this terminal, which is kept in `$XDG_STATE_HOME/rlhf-dialog`, by default in ~/.local/state.

    Where it cannot be kept, it is new each time, and a warning says so.
    """
    given = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(given if os.path.isabs(given) else os.path.expanduser("~/.local/state")) / "rlhf-dialog"
    try:
        if not folder.is_absolute():
            raise FileNotFoundError("there is no home folder; set HOME or XDG_STATE_HOME")
        path = folder / "person"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            os.write(file, f"{secrets.token_hex(16)}\n".encode())
            os.close(file)
        person = path.read_text(encoding="ascii").strip()
        if not re.fullmatch(r"[0-9a-f]{32}", person):
            raise ValueError(f"{path} does not hold 32 hexadecimal digits; remove it")
    except (OSError, ValueError) as error:
        logger.warning("your id cannot be kept: %s; what you say now cannot be found later as yours", error)
        return secrets.token_hex(16)
    return person


def edit_lines() -> None:
    """From now on, a line can be edited while it is typed, and those before come with the arrows; they are not kept on disk."""
    if is_terminal():
        with contextlib.suppress(ImportError):  # Windows lacks it
            import readline  # noqa: F401  `input` uses it once it is loaded


def forget_lines() -> None:
    """Remove the lines that were typed."""
    if readline := sys.modules.get("readline"):
        readline.clear_history()


def is_terminal() -> bool:
    """Whether a person types and reads, and not a pipe or a file."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
