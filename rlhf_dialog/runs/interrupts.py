"""SIGTERM and SIGINT while a run trains: finish and save the iteration if the time allows it, else leave at once."""

import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

logger = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM)
TWICE = 0.5  # seconds in which a repeated signal is the same one: `timeout` signals the process and its group


class Interrupts:
    """While the block runs, a signal ends the training with code 130 (SIGINT) or 143 (SIGTERM). Only in the main thread.

    The first signal lets the iteration end, if the rest of it should fit into `grace_seconds` (the last one took as long as it
    took; before that nothing is known): then `asked` is true, and `iteration_ended` leaves once it is saved. Where it does not
    fit, and when it turns out to take longer, KeyboardInterrupt or SystemExit is raised wherever the program is. A second signal
    ends the process without any unwinding: what is left then is what a kill leaves. Only one of several processes `speaks`.
    `run` is the run folder that the last message names.
    """

    def __init__(self, grace_seconds: float, speaks: bool = True, run: str | Path = "RUN"):
        self.grace_seconds, self.speaks, self.run = grace_seconds, speaks, run
        self.signum: int | None = None
        self._asked_at = 0.0
        self._last: float | None = None
        self._started = time.monotonic()
        self._backstop: threading.Timer | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for signum in SIGNALS:
                if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup and `&` in a script mean it
                    self._before[signum] = signal.signal(signum, self._handle)
        self._started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._disarm()
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    @property
    def asked(self) -> bool:
        """Whether a signal wants the run to end after this iteration."""
        return self.signum is not None

    def agree(self, signals: Sequence[int | None]) -> bool:
        """Whether a signal that any process has had by now (`signals`, one for each) ends the run after this iteration.

        A signal that comes later than this question waits for the next one, so that all processes end together.
        """
        found = [signum for signum in signals if signum is not None]
        if found and self.signum is None:
            self.signum, self._asked_at = max(found), time.monotonic()
        return bool(found)

    def iteration_ended(self, iteration: int, saved: bool) -> None:
        """The iteration is logged; `saved` says whether it has a checkpoint. Raises the end of the run if it was asked for."""
        if self.signum is not None and saved:
            self._disarm()
            logger.info(
                "saved after iteration %d; continue with --resume; make an agent of it: rlhf-dialog export --run %s --output DIR",
                *(iteration, self.run),
            )
            leave(self.signum)
        now = time.monotonic()
        self._last, self._started = now - self._started, now

    def _handle(self, signum: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self.signum is None:
            self.signum, self._asked_at = signum, now
            self._first(now)
        elif self._overdue(now):
            self._say("the iteration takes longer than expected: leaving at once; the last checkpoint stands")
            leave(self.signum)
        elif now - self._asked_at > TWICE:
            self._say(f"{signal.Signals(signum).name} again: leaving without tidying up; the last checkpoint stands")
            os._exit(128 + signum)

    def _first(self, now: float) -> None:
        """Leave, or say how long the rest takes and set an alarm for the case that it does not keep to that."""
        signum = self.signum or signal.SIGINT
        name = signal.Signals(signum).name
        rest = None if self._last is None else max(self._last - (now - self._started), 0.0)
        if rest is None or rest > self.grace_seconds:
            why = "this is the first iteration" if rest is None else f"the iteration needs about {rest:.0f} s more"
            self._say(f"{name}: leaving at once, because {why}; the last checkpoint stands")
            leave(signum)
        self._say(f"{name}: finishing the iteration, about {rest:.0f} s; once more to leave at once")
        self._backstop = threading.Timer(self.grace_seconds, signal.pthread_kill, (threading.get_ident(), signum))
        self._backstop.daemon = True
        self._backstop.start()

    def _overdue(self, now: float) -> bool:
        """Whether the signal is the alarm, which rings once."""
        rang = self._backstop is not None and now - self._asked_at >= self.grace_seconds
        if rang:
            self._disarm()
        return rang

    def _say(self, text: str) -> None:
        """A line on stderr past Python's buffers, which may be busy with the line that the signal interrupted."""
        if self.speaks:
            os.write(2, f"{text}\n".encode())

    def _disarm(self) -> None:
        if self._backstop:
            self._backstop.cancel()
            self._backstop = None


def leave(signum: int) -> NoReturn:
    """What Ctrl-C and `sys.exit` raise: nothing that catches Exception can swallow it."""
    raise KeyboardInterrupt if signum == signal.SIGINT else SystemExit(128 + signum)
