"""Jobs in processes of their own, some at a time. What a job makes, it writes to files; it answers only how it ended."""

from collections.abc import Callable, Generator, Iterable
from multiprocessing.connection import wait
from typing import Any

from rlhf_dialog.workers import LOST, Worker, WorkerFailed

# sums of several threads are rounded differently
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
MOST_TEXT = 10_000
Ended = tuple[Any, str | None]


def run_jobs(jobs: Iterable[tuple[Any, Callable[[], None]]], num_processes: int) -> Generator[Ended, None, None]:
    """Run each (name, job) in a process of its own, `num_processes` at a time; yields (name, None) or (name, what went wrong).

    A job must be picklable. It has one thread of torch and of linear algebra. The next job is taken from the iterable when
    there is a process for it. All processes end when the iterator is closed, or this process is killed.
    """
    waiting, running = iter(jobs), dict[Any, Any]()
    try:
        while True:
            while len(running) < num_processes and (following := next(waiting, None)):
                name, job = following
                running[Worker(job, runs_script=True, settings=ONE_THREAD)] = name
            if not running:
                return
            for worker in wait(list(running)):
                yield running.pop(worker), _how_it_ended(worker)
    finally:
        for worker in running:
            worker.kill()


def _how_it_ended(worker: Any) -> str | None:
    failure = None
    try:
        worker.receive()
    except WorkerFailed as failed:
        failure = failed.report[-MOST_TEXT:]
    except LOST:
        return f"its process (pid {worker.pid}) {worker.how_it_ended()}"
    worker.wait()
    return failure
