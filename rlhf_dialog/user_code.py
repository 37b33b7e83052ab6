"""Code that others wrote: the line at which it raised or hangs, and a time limit on it.

What hangs cannot be interrupted: it runs in a thread, which the caller abandons when the time is up.
"""

import contextlib
import ctypes
import faulthandler
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from textwrap import shorten
from typing import Any, Generic, TypeVar

from rlhf_dialog.errors import ASKED_TO_END, RunStopped, UserError

T = TypeVar("T")
GRACE = 10.0  # seconds after the limit within which the caller must react; else the process ends itself
TICK = 0.2  # seconds between two looks of the thread that interrupts others
LIBRARIES = (
    Path(__file__).parent.resolve(),
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")),
)


class TimeLimit(Exception):
    """The work of `run_with_timeout` did not finish in time; `frames` is where it was then."""

    def __init__(self, frames: Iterable[traceback.FrameSummary] = ()):
        super().__init__()
        self.frames = list(frames)


class BackgroundCall(Generic[T]):
    """Work in a thread of its own that does not keep the process alive."""

    def __init__(self, work: Callable[[], T]):
        self._future: Future[T] = Future()
        self._thread = threading.Thread(target=self._run, args=(work,), name="rlhf_dialog aside", daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._future.set_result(work())
        except BaseException as error:  # of any kind: `result` raises it in the caller
            self._future.set_exception(error)

    def result(self, seconds: float | None = None) -> T:
        """Return or raise what the work does. Raises TimeLimit after `seconds`; the thread goes on."""
        try:
            return self._future.result(seconds)
        except TimeoutError:
            if self._future.done():  # the work's own
                raise
            frame = sys._current_frames().get(self._thread.ident or 0)
            raise TimeLimit(traceback.extract_stack(frame) if frame else ()) from None


def run_with_timeout(seconds: float, work: Callable[[], T]) -> T:
    """Return or raise what `work` does in its own thread. Raises TimeLimit after `seconds`; the thread goes on."""
    return BackgroundCall(work).result(seconds)


_deadlines: dict[int, float] = {}  # by thread, of the blocks of `interrupted_after`
_changes = threading.RLock()
_interrupter: list[threading.Thread] = []  # one, which a forked process does not have
_never = threading.Event()


@contextlib.contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raises TimeLimit in the block, in any thread, when it takes longer: between two steps of Python, never in one."""
    ident = threading.get_ident()
    with _changes:
        if not (_interrupter and _interrupter[0].is_alive()):
            _interrupter[:] = [threading.Thread(target=_interrupt_late_ones, name="rlhf_dialog limits", daemon=True)]
            _interrupter[0].start()
        _deadlines[ident] = time.monotonic() + seconds
    try:
        yield
    finally:
        with _changes:
            if _deadlines.pop(ident, None) is None:  # raised, or about to be
                _raise_in(ident, None)


def _interrupt_late_ones() -> None:
    while True:
        _never.wait(TICK)
        with _changes:
            for ident in [ident for ident, deadline in _deadlines.items() if time.monotonic() > deadline]:
                del _deadlines[ident]
                _raise_in(ident, TimeLimit)


def _raise_in(ident: int, error: type[Exception] | None) -> None:
    """Raise the error in another thread at its next step; None: take back one that was not raised yet."""
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), raised)


@contextlib.contextmanager
def ends_the_process(seconds: float) -> Iterator[None]:
    """End the process when the block takes `GRACE` longer than `seconds`: stacks on stderr, exit code 1.

    For what blocks every other thread, such as a C function or a regular expression that holds the interpreter's lock.
    """
    with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr is not a file, as in a notebook
        faulthandler.dump_traceback_later(max(seconds, 0.0) + GRACE, exit=True, file=sys.__stderr__)  # type: ignore[arg-type]
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def all_stacks() -> str:
    """The stack of every Python thread, as in a traceback."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"thread {names.get(ident, ident)}, most recent call last:\n")
        parts += traceback.format_stack(frame)
    return "".join(parts)


def is_of_users(made: Any) -> bool:
    """Whether a class or function is the user's, not one of this package."""
    return not str(getattr(made, "__module__", "")).startswith("rlhf_dialog.")


@contextlib.contextmanager
def as_user_error(who: str, cls: type = object, kind: type[UserError] = UserError) -> Iterator[None]:
    """Turn exceptions of the block into `kind`: who raised, what, which line (`find_user_line`).

    UserError, RunStopped and the end that Ctrl-C or a signal asks for pass; other exceptions of the user's own do not.
    """
    try:
        yield
    except (UserError, RunStopped, *ASKED_TO_END):
        raise
    except BaseException as error:
        place = find_user_line(cls, traceback.extract_tb(error.__traceback__))
        what = shorten(str(error), 200, placeholder=" ...")  # on one line
        raise kind(f"{who} raised {type(error).__name__}: {what}{place}") from error


def find_user_line(cls: type, frames: list[traceback.FrameSummary]) -> str:
    """` at path:line`: the deepest line of the user's own code, in the file of the class if possible; empty without one."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    own = [frame for frame in frames if file and Path(frame.filename).resolve() == Path(file).resolve()]
    found = outside_libraries(own) or outside_libraries(frames) or own
    return f" at {format_line(found[-1])}" if found else ""


def format_line(frame: traceback.FrameSummary) -> str:
    """`path:line`, relative to the working directory where the file lies below it."""
    path = Path(frame.filename)
    place = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{place}:{frame.lineno}"


def outside_libraries(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The frames in files that are neither ours nor those of Python and of installed packages."""
    return [
        frame
        for frame in frames
        if not frame.filename.startswith("<frozen")
        and not any(Path(frame.filename).resolve().is_relative_to(library) for library in LIBRARIES)
    ]
