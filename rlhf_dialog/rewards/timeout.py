"""A time limit on work that cannot be interrupted: it runs in a thread, which the caller abandons when the time is up."""

import contextlib
import faulthandler
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Generic, TypeVar

from rlhf_dialog.errors import RunStopped

T = TypeVar("T")
GRACE = 10.0  # seconds after the limit within which the caller must react; else the process ends itself


class RewardTimeout(RunStopped):
    """A reward took longer than `reward_timeout_s`; `__cause__` holds the stacks of all threads."""


class Stacks(Exception):
    """The stacks of all threads, as text."""


def stop_after(seconds: float | None, name: str, work: Callable[[], T]) -> T:
    """Return or raise what `work` does. With `seconds` None there is no limit, and it runs in the caller's own thread.

    After `seconds`, raises RewardTimeout, which names the reward, and writes the stacks of all threads to stderr. The work
    cannot be stopped, so its thread goes on, but does not keep the process alive. If the work blocks every other thread (a C
    function, or a regular expression, that holds the interpreter's lock), faulthandler ends the process: stacks, exit code 1.
    """
    if seconds is None:
        return work()
    with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr is not a file, as in a notebook
        faulthandler.dump_traceback_later(max(seconds, 0.0) + GRACE, exit=True, file=sys.__stderr__)  # type: ignore[arg-type]
    try:
        return within(seconds, work)
    except TimeLimit:
        stacks = all_stacks()
        sys.stderr.write(stacks)
        raise RewardTimeout(
            f"reward '{name}' did not finish within {round(seconds, 1):g} seconds (what was left of reward_timeout_s); "
            "the stacks of all threads show where it hangs; the last checkpoint is kept"
        ) from Stacks(stacks)
    finally:
        faulthandler.cancel_dump_traceback_later()


class TimeLimit(Exception):
    """The work of `within` did not finish in time."""


class Aside(Generic[T]):
    """Work in a thread of its own that does not keep the process alive."""

    def __init__(self, work: Callable[[], T]):
        self._value: T
        self._error: BaseException | None = None
        self._has_value = False
        self._thread = threading.Thread(target=self._run, args=(work,), name="rlhf_dialog aside", daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._value = work()
            self._has_value = True
        except BaseException as error:  # of any kind: `result` raises it in the caller
            self._error = error

    @property
    def is_done(self) -> bool:
        """Whether the work has returned or raised."""
        return not self._thread.is_alive()

    def result(self, seconds: float | None = None) -> T:
        """Return or raise what the work does. Raises TimeLimit after `seconds`; the thread goes on."""
        self._thread.join(None if seconds is None else max(seconds, 0.0))
        if self._error is not None:
            raise self._error
        if not self._has_value:
            raise TimeLimit
        return self._value


def within(seconds: float, work: Callable[[], T]) -> T:
    """Return or raise what `work` does in its own thread. Raises TimeLimit after `seconds`; the thread goes on."""
    return Aside(work).result(seconds)


def all_stacks() -> str:
    """The stack of every Python thread, as in a traceback."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"thread {names.get(ident, ident)}, most recent call last:\n")
        parts += traceback.format_stack(frame)
    return "".join(parts)
