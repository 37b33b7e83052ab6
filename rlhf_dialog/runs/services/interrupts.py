"""SIGTERM, SIGINT and their like during training: finish and save the iteration, if that does not take too long."""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rlhf_dialog.errors import RunStopped, SignalExit
from rlhf_dialog.runs.checkpoint import describe_kept
from rlhf_dialog.runs.services.base import Run, Service

logger = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT)
TWICE = 0.5  # seconds in which a repeated signal counts as one: `timeout` signals the process and its group


class Interrupts(Service):
    """From `begin` until the last iteration has ended, or while the block runs, each of `SIGNALS` ends the training with code
    128 + its number, unless it was ignored before (nohup). Only in the main thread.

    After the first signal `asked` is true, and the iteration has `grace_seconds` to finish: `iteration_ended` ends the run once
    it is saved. Then KeyboardInterrupt or SystemExit is raised at the current instruction. A second signal ends the process
    without cleanup, like a kill. `speaks`: print messages (true on one process only). `advice` ends the last message.
    """

    def __init__(self, grace_seconds: float, speaks: bool = True, advice: str = ""):
        self.grace_seconds, self.speaks, self.advice = grace_seconds, speaks, advice
        self.signum: int | None = None
        self._agreed = False  # all processes end after this iteration
        self._world_size = 1
        self._checkpoints: Path | None = None  # of the run, once it has begun
        self._asked_at = 0.0
        self._alarm: threading.Timer | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for signum in SIGNALS:
                if signal.getsignal(signum) is not signal.SIG_IGN:  # as set by nohup, or by `&` in a script
                    self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._disarm()
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def begin(self, run: Run) -> None:
        self._world_size, self._checkpoints = run.world.size, run.folder / "checkpoints"
        self.__enter__()

    def end(self, error: BaseException | None) -> None:
        self.__exit__()
        if isinstance(error, RunStopped) and self.signum is not None and self._world_size > 1:
            leave(self.signum)  # other ranks have left already

    @property
    def asked(self) -> bool:
        """Whether a signal has asked the run to end after this iteration."""
        return self.signum is not None

    def wants_checkpoint(self, run: Run) -> bool:
        """A signal that any process has received ends the run after this iteration.

        One that arrives after this call takes effect at the next, so that all processes end together.
        """
        signals = [signum for signum in run.world.gather(self.signum) if signum is not None]
        self._agreed = bool(signals)
        if signals and self.signum is None:
            self.signum, self._asked_at = max(signals), time.monotonic()
        return bool(signals)

    def iteration_ended(self, run: Run, saved: bool) -> None:
        """End the run if a signal has asked for it, and the iteration has a checkpoint."""
        if self.signum is not None and saved and (self._agreed or run.world.size == 1):
            self._disarm()
            logger.info("saved after iteration %d; continue with --resume%s", run.iteration, self.advice)
            leave(self.signum)
        if run.done:
            self.__exit__()

    def _handle(self, signum: int, _: FrameType | None) -> None:
        seconds = time.monotonic() - self._asked_at
        if self.signum is None:
            self.signum, self._asked_at = signum, time.monotonic()
            self._first(signum)
        elif self._alarm is not None and seconds >= self.grace_seconds:  # it is the alarm, which rings once
            self._disarm()
            self._say(f"the iteration takes longer than grace_seconds: ending at once{self._kept()}")
            leave(self.signum)
        elif seconds > TWICE:
            self._say(f"{signal.Signals(signum).name} again: ending without cleanup{self._kept()}")
            os._exit(128 + signum)

    def _first(self, signum: int) -> None:
        """End the run, or give the iteration its time."""
        name = signal.Signals(signum).name
        if not self.grace_seconds:
            self._say(f"{name}: ending at once{self._kept()}")
            leave(signum)
        self._say(
            f"{name}: finishing the iteration, for {self.grace_seconds:g} s at most; send it again to end at once"
        )
        self._alarm = threading.Timer(self.grace_seconds, signal.pthread_kill, (threading.get_ident(), signum))
        self._alarm.daemon = True
        self._alarm.start()

    def _kept(self) -> str:
        return f"; {describe_kept(self._checkpoints)}" if self._checkpoints else ""

    def _say(self, text: str) -> None:
        """Write a line to stderr without Python's buffers, which may contain the line that the signal interrupted."""
        if self.speaks:
            with suppress(OSError):  # nobody may read it any more
                os.write(2, f"{text}\n".encode())

    def _disarm(self) -> None:
        if self._alarm:
            self._alarm.cancel()
            self._alarm = None


class WhileWaiting(Interrupts):
    """`Interrupts` of a run that waits for a person: a signal ends the waiting at once, but learning and saving are finished."""

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

    def _first(self, signum: int) -> None:
        if self._waits:
            leave(signum)
        self._say("ending as soon as the dialogue is saved; send it again to end at once")


def leave(signum: int) -> NoReturn:
    """Raise what Ctrl-C and `sys.exit` raise, which `except Exception` does not catch."""
    raise KeyboardInterrupt if signum == signal.SIGINT else SignalExit(128 + signum)
