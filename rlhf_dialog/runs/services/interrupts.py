"""SIGTERM, SIGINT and their like during training: finish and save the iteration if time allows, else end at once."""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rlhf_dialog.errors import RunStopped, SignalExit
from rlhf_dialog.runs.services.base import Run, Service

logger = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT)
TWICE = 0.5  # seconds in which a repeated signal counts as one: `timeout` signals the process and its group


class Interrupts(Service):
    """From `begin` until the last iteration has ended, or while the block runs, each of `SIGNALS` ends the training with code
    128 + its number, unless it was ignored before (nohup). Only in the main thread.

    The first signal lets the iteration finish if its rest is expected to fit into `grace_seconds`, judged by the duration of the
    last iteration: then `asked` is true, and `iteration_ended` ends the run once the iteration is saved. If it does not fit,
    takes longer than expected, or is the first iteration, KeyboardInterrupt or SystemExit is raised at the current instruction.
    A second signal ends the process without cleanup, like a kill. `speaks`: print messages (true on one process only). `run`:
    the run folder to show in the last message. `exports`: `rlhf-dialog export` can make an agent of the checkpoint.
    """

    def __init__(self, grace_seconds: float, speaks: bool = True, run: str | Path = "RUN", exports: bool = True):
        self.grace_seconds, self.speaks, self.run, self.exports = grace_seconds, speaks, run, exports
        self.signum: int | None = None
        self._agreed = False  # all processes end after this iteration
        self._world_size = 1
        self._asked_at = 0.0
        self._last: float | None = None
        self._started = time.monotonic()
        self._backstop: threading.Timer | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for signum in SIGNALS:
                if signal.getsignal(signum) is not signal.SIG_IGN:  # as set by nohup, or by `&` in a script
                    self._before[signum] = signal.signal(signum, self._handle)
        self._started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _restore(self) -> None:
        self._disarm()
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def begin(self, run: Run) -> None:
        self._world_size = run.world.size
        self.__enter__()

    def end(self, error: BaseException | None) -> None:
        self._restore()
        if isinstance(error, RunStopped) and self.signum is not None and self._world_size > 1:
            leave(self.signum)  # other ranks have left already

    @property
    def asked(self) -> bool:
        """Whether a signal has asked the run to end after this iteration."""
        return self.signum is not None

    def wants(self, run: Run) -> set[str]:
        self._agreed = self.agree(run.world.gather(self.signum))
        return {"save", "stop"} if self._agreed else set()

    def agree(self, signals: Sequence[int | None]) -> bool:
        """Whether a signal that any process has received (`signals`, one per process) ends the run after this iteration.

        A signal that arrives after this call takes effect at the next call, so that all processes end together.
        """
        found = [signum for signum in signals if signum is not None]
        if found and self.signum is None:
            self.signum, self._asked_at = max(found), time.monotonic()
        return bool(found)

    def iteration_ended(self, run: Run, saved: bool) -> None:
        """End the run if a signal has asked for it, and the iteration has a checkpoint."""
        if self.signum is not None and saved and (self._agreed or run.world.size == 1):
            self._disarm()
            export = f", or export an agent: rlhf-dialog export --run {self.run} --output DIR" if self.exports else ""
            logger.info("saved after iteration %d; continue with --resume%s", run.iteration, export)
            leave(self.signum)
        now = time.monotonic()
        self._last, self._started = now - self._started, now
        if run.done:
            self._restore()

    def _handle(self, signum: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self.signum is None:
            self.signum, self._asked_at = signum, now
            self._first(now)
        elif self._overdue(now):
            self._say("the iteration takes longer than expected: ending at once; the last checkpoint is kept")
            leave(self.signum)
        elif now - self._asked_at > TWICE:
            self._say(f"{signal.Signals(signum).name} again: ending without cleanup; the last checkpoint is kept")
            os._exit(128 + signum)

    def _first(self, now: float) -> None:
        """End the run, or announce the remaining time and set an alarm in case the iteration takes longer."""
        signum = self.signum or signal.SIGINT
        name = signal.Signals(signum).name
        remaining, why = math.inf, "this is the first iteration"
        if self._last is not None:
            remaining = max(self._last - (now - self._started), 0.0)
            why = f"the iteration needs about {remaining:.0f} s more"
        if remaining > self.grace_seconds:
            self._say(f"{name}: ending at once, because {why}; the last checkpoint is kept")
            leave(signum)
        self._say(f"{name}: finishing the iteration, about {remaining:.0f} s; send it again to end at once")
        self._backstop = threading.Timer(self.grace_seconds, signal.pthread_kill, (threading.get_ident(), signum))
        self._backstop.daemon = True
        self._backstop.start()

    def _overdue(self, now: float) -> bool:
        """Whether the signal is the alarm, which fires once."""
        rang = self._backstop is not None and now - self._asked_at >= self.grace_seconds
        if rang:
            self._disarm()
        return rang

    def _say(self, text: str) -> None:
        """Write a line to stderr without Python's buffers, which may contain the line that the signal interrupted."""
        if self.speaks:
            with suppress(OSError):  # nobody may read it any more
                os.write(2, f"{text}\n".encode())

    def _disarm(self) -> None:
        if self._backstop:
            self._backstop.cancel()
            self._backstop = None


class WhileWaiting(Interrupts):
    """`Interrupts` of a run that waits for a person: a signal ends the waiting at once; learning and saving are finished first.

    A second signal ends the process without cleanup.
    """

    def __init__(self) -> None:
        super().__init__(grace_seconds=0)
        self._waits = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While the block runs, a signal raises at the current instruction; one that came before it does so at its start."""
        if self.signum is not None:
            leave(self.signum)
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def _first(self, now: float) -> None:
        if self._waits and self.signum is not None:
            leave(self.signum)
        self._say("ending as soon as the dialogue is saved; send it again to end at once")


def leave(signum: int) -> NoReturn:
    """Raise what Ctrl-C and `sys.exit` raise, which `except Exception` does not catch."""
    raise KeyboardInterrupt if signum == signal.SIGINT else SignalExit(128 + signum)
