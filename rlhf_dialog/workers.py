"""Processes that work for this one: how they are started, asked, watched and ended.

Each is a fresh Python, never a fork, which would copy the threads of torch and CUDA in the middle of their work. Signals do
not reach it, of a terminal or of others: this process decides when to end, and a worker ends with it, however that ends.
It imports from where this process does, and not from the working directory (`-P`).
"""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import spawn
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import Any

from rlhf_dialog.errors import UserError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT)
GRACE = 10.0  # seconds in which a process has ended whose connection has
LOST = (EOFError, OSError)  # what a connection raises whose other side has ended
START = (
    "import sys; from multiprocessing.connection import Connection; host = Connection(int(sys.argv[1])); "
    f"sys.path[:] = host.recv(); import {__name__} as here; here.serve(host)"
)


class WorkerFailed(Exception):
    """A worker raised `kind`, with this text; `report` is the text of a UserError, and of others the traceback."""

    def __init__(self, kind: str, text: str, report: str):
        super().__init__(kind, text, report)
        self.kind, self.text, self.report = kind, text, report


class Worker:
    """A process that calls `begin`, answers when this has returned, and then answers each message with what came of it.

    begin: can be pickled; returns the function that messages are given to, or None for a process that ends then
    runs_script: whether the process first runs the script of this one (as `__mp_main__`), which may define what is sent
    settings: changes of its environment variables
    """

    def __init__(
        self, begin: Callable[[], Any], *, runs_script: bool, settings: Mapping[str, str] | None = None
    ) -> None:
        self._connection, theirs = Pipe()
        with _blocked_signals():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", START, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=os.environ | (settings or {}),
                pass_fds=[theirs.fileno()],
            )
        theirs.close()
        self.kill: Callable[[], Any] = weakref.finalize(self, _end, self._process, self._connection)
        with suppress(OSError):  # it has ended, which `receive` shows
            script = spawn.get_preparation_data("worker") if runs_script else {}  # what `multiprocessing` would tell it
            script.pop("authkey", None)  # the key of its own servers must not travel
            for message in (sys.path, script, begin):
                self.send(message)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """For `multiprocessing.connection.wait`: which of several have answered or ended."""
        return self._connection.fileno()

    def send(self, message: Any) -> None:
        """Give it a message. Raises an OSError when it has ended."""
        self._connection.send_bytes(pickle.dumps(message))

    def receive(self, seconds: float | None = None) -> Any:
        """Its next answer. Raises WorkerFailed with what it raised, TimeoutError after `seconds`, EOFError when it has ended."""
        if not self._connection.poll(seconds):
            raise TimeoutError
        try:
            answer = pickle.loads(self._connection.recv_bytes())
        except LOST:
            raise EOFError("Ran out of input") from None
        if isinstance(answer, WorkerFailed):
            raise answer
        return answer

    def wait(self, seconds: float | None = None) -> int:
        """The exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        return self._process.wait(seconds)

    def how_it_ended(self) -> str:
        """For errors, after its connection has ended: `has ended by signal 9`."""
        try:
            code = self.wait(GRACE)
        except subprocess.TimeoutExpired:
            return "does not answer any more"
        return f"has ended by signal {-code}" if code < 0 else f"has ended with code {code}"


def _end(process: "subprocess.Popen[bytes]", connection: Connection) -> None:
    """What `Worker.kill` does, at the latest when the worker is not referred to any more: end it at once."""
    process.kill()
    process.wait()
    connection.close()


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """A process that starts here inherits the blocked signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(host: Connection) -> None:
    """What a worker does."""
    messages: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(host, messages), daemon=True).start()
    process = vars(multiprocessing.current_process())
    process["_inheriting"] = True  # a script that starts processes already when it is imported is refused
    spawn.prepare(pickle.loads(messages.get()))
    del process["_inheriting"]
    answer = None
    try:
        answer = pickle.loads(messages.get())()
        _send(host, pickle.dumps(None))
    except BaseException as error:
        _send(host, _failure(error))
    while answer is not None:
        try:
            answered = pickle.dumps(answer(pickle.loads(messages.get())))
        except BaseException as error:
            answered = _failure(error)
        _send(host, answered)


def _read(host: Connection, messages: "SimpleQueue[bytes]") -> None:
    """Messages are read while the worker computes, so that nobody waits to send one, and the end of the host is noticed."""
    with suppress(Exception):  # at the end of the input
        while True:
            messages.put(host.recv_bytes())
    os._exit(0)


def _send(host: Connection, answer: bytes) -> None:
    try:
        host.send_bytes(answer)
    except OSError:  # the host has ended
        os._exit(0)


def _failure(error: BaseException) -> bytes:
    report = str(error) if isinstance(error, UserError) else "".join(traceback.format_exception(error))
    return pickle.dumps(WorkerFailed(type(error).__name__, str(error), report))
