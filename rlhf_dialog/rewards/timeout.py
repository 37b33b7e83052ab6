"""A time limit on work that nothing can interrupt: it runs beside the caller, who leaves it behind when the time is up."""

import contextlib
import faulthandler
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Generic, TypeVar

from rlhf_dialog.errors import RunStopped

T = TypeVar("T")
GRACE = 10.0  # seconds after the limit in which the caller must have woken up; else the process ends itself


class RewardTimeout(RunStopped):
    """A reward took longer than `reward_timeout_s`; `__cause__` holds the stacks of all threads."""


class Stacks(Exception):
    """Where every thread stood, as text."""


def stop_after(seconds: float | None, name: str, work: Callable[[], T]) -> T:
    """What `work` returns or raises; None for `seconds`: without a limit, in the caller's own thread.

    Raises RewardTimeout that names the reward after `seconds`, with the stacks of all threads on stderr. The work cannot be
    ended, so it stays behind in a thread that does not keep the process alive. Work that blocks every other thread (a C
    function, or a regular expression, that keeps the interpreter's lock) is met by faulthandler: stacks, then exit code 1.
    """
    if seconds is None:
        return work()
    with contextlib.suppress(AttributeError, OSError, ValueError):  # a stderr that is no file, as in a notebook
        faulthandler.dump_traceback_later(max(seconds, 0.0) + GRACE, exit=True, file=sys.__stderr__)  # type: ignore[arg-type]
    try:
        return within(seconds, work)
    except TimeLimit:
        stacks = all_stacks()
        sys.stderr.write(stacks)
        raise RewardTimeout(
            f"reward '{name}' was not done within {round(seconds, 1):g} seconds (what reward_timeout_s left it); "
            "the stacks of all threads show where it hangs; the last checkpoint stands"
        ) from Stacks(stacks)
    finally:
        faulthandler.cancel_dump_traceback_later()


class TimeLimit(Exception):
    """The work of `within` was not done in time."""


class Aside(Generic[T]):
    """Work in a thread of its own that does not keep the process alive."""

    def __init__(self, work: Callable[[], T]):
        self._results: list[T] = []
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(work,), name="rlhf_dialog aside", daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._results.append(work())
        except BaseException as error:  # handed on to the caller, whatever it is
            self._errors.append(error)

    def result(self, seconds: float | None = None) -> T:
        """What the work returns or raises. Raises TimeLimit after `seconds` and leaves the thread behind."""
        self._thread.join(None if seconds is None else max(seconds, 0.0))
        if self._errors:
            raise self._errors[0]
        if not self._results:
            raise TimeLimit
        return self._results[0]


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises in a thread of its own. Raises TimeLimit after `seconds` and leaves the thread behind."""
    return Aside(work).result(seconds)


def all_stacks() -> str:
    """The stack of every Python thread, as in a traceback."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"thread {names.get(ident, ident)}, most recent call last:\n")
        parts += traceback.format_stack(frame)
    return "".join(parts)
