"""Jobs in processes of their own, some at a time. What a job makes, it writes to files; it answers only how it ended."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from rlhf_dialog.errors import UserError

SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGQUIT,
)  # the parent decides when to end
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
MOST_TEXT = 10_000  # fits into a pipe that nobody reads before the process has ended
Ended = tuple[Any, str | None]


def run_jobs(jobs: Iterable[tuple[Any, Callable[[], None]]], num_processes: int) -> Generator[Ended, None, None]:
    """Run each (name, job) in a process of its own, `num_processes` at a time; yields (name, None) or (name, what went wrong).

    Processes are spawned, so a job must be picklable. It has one thread of torch and of linear algebra. The next job is taken
    from the iterable when there is a process for it. All processes end when the iterator is closed, or this process is killed.
    """
    context = multiprocessing.get_context("spawn")
    waiting, running = iter(jobs), dict[Any, tuple[Any, Any]]()
    try:
        while True:
            while len(running) < num_processes and (following := next(waiting, None)):
                name, job = following
                process, reader = _started(context, job)
                running[process.sentinel] = name, (process, reader)
            if not running:
                return
            for sentinel in wait(list(running)):
                name, (process, reader) = running.pop(sentinel)
                yield name, _how_it_ended(process, reader)
    finally:
        for _, (process, _) in running.values():
            process.kill()
            process.join()


def _started(context: Any, job: Callable[[], None]) -> tuple[Any, Connection]:
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(job, writer), daemon=True)
    with _blocked_signals(), _one_thread():
        process.start()
    writer.close()
    return process, reader


def _how_it_ended(process: Any, reader: Connection) -> str | None:
    process.join()
    failure = f"its process (pid {process.pid}) has ended by signal {-process.exitcode}"
    if process.exitcode >= 0:
        failure = f"its process (pid {process.pid}) has ended with code {process.exitcode}"
    with suppress(EOFError, OSError):
        return reader.recv() if reader.poll() else failure
    return failure


def _work(job: Callable[[], None], writer: Connection) -> None:
    """What a process does. It ends with its parent, also when that was killed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    failure = None
    try:
        job()
    except UserError as error:
        failure = str(error)
    except BaseException:
        failure = traceback.format_exc()
    writer.send(failure and failure[-MOST_TEXT:])


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """A process that starts here inherits the blocked signals: Ctrl-C in a terminal reaches the parent alone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A process that starts here computes with one thread, because sums of several are rounded differently."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
