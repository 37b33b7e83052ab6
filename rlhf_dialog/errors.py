"""Errors that end a run with a message instead of a traceback, their exit codes, and "did you mean"."""

import difflib
import sys
from collections.abc import Iterable
from copy import copy
from importlib.util import find_spec
from typing import Self

INTERNAL_ERROR = 70  # the exit code of an exception that nobody expected: a bug


class UserError(Exception):
    """A mistake that the user can fix: says what is wrong, where, and what to do. Shown without a traceback.

    >>> str(UserError("is not a folder", where="model_path: './gpt'", remedy="give one that is there"))
    "model_path: './gpt': is not a folder; give one that is there"
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str = "", remedy: str = ""):
        super().__init__((f"{where}: " if where else "") + what + (f"; {remedy}" if remedy else ""))
        self.what, self.where, self.remedy = what, where, remedy

    def with_location(self, where: str, instead_of: str = "") -> Self:
        """The error with another place: `where` before its text, and in place of its own; an empty `where` leaves the place out.

        With `instead_of`, `where` replaces that, wherever the text names it; a text that does not name it stays as it is.
        """
        old = instead_of or self.where
        text = str(self) if where and instead_of else str(self).removeprefix(f"{old}: ")
        if where:
            text = text.replace(old, where) if instead_of else f"{where}: {text}"
        moved = copy(self)
        moved.args = (text,)
        return moved


class MissingSplit(UserError):
    """The data can be read, but does not have the requested split."""


class RunStopped(Exception):
    """A check during the run has failed (a non-finite number, a violated identity), and the run stopped itself."""

    exit_code = 3


class SignalExit(SystemExit):
    """A signal has asked the process to end with code 128 + its number; a SystemExit of any other kind is not a signal's."""


ASKED_TO_END = (KeyboardInterrupt, SignalExit)  # by Ctrl-C or a signal; any other exception of a user's code is its own


def check_installed(package: str, asked_by: str) -> None:
    """Raises UserError when the package cannot be imported; `asked_by` is the key or the option that needs it.

    Nothing is imported. A folder of that name in the working directory (wandb makes one) is not the package.
    """
    spec = None if package in sys.modules else find_spec(package)
    if sys.modules.get(package) is None and (spec is None or spec.origin is None):
        name = package.replace("_", "-")
        raise UserError(
            f"{asked_by}: the package {name} is not installed; install it (pip install {name}), or do without"
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known name, or an empty string."""
    match = difflib.get_close_matches(name, [str(key) for key in known], n=1, cutoff=0.6)
    return f"; did you mean '{match[0]}'?" if match else ""
