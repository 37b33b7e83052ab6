"""Processes that share the work of rewards in pure Python, and the rule for when a run starts them.

Each is a fresh Python that runs this file, never a fork, which would copy the threads of torch and CUDA in the middle of their
work. It reads tasks from its stdin and does not run the user's script again.
"""

import contextlib
import faulthandler
import logging
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from rlhf_dialog.foreign_code import BackgroundCall
from rlhf_dialog.rewards.base import BaseReward

logger = logging.getLogger(__name__)
SHARE = 0.1  # of an iteration's time, above which a reward gets processes
AT_MOST = 16
QUOTA = Path("/sys/fs/cgroup/cpu.max")
ROWS_EACH = 4  # dialogues below which a further process is not worth its message
Task = tuple[bytes, str, list[Any], float | None]  # the pickled reward, the name of its method, dialogues, seconds


def is_divisible(reward: BaseReward) -> bool:
    """Whether the reward's own class sets `divisible`, in a module that another process can import.

    A subclass may do more than its base, so that it does not inherit `divisible`.
    """
    cls = type(reward)
    return bool(vars(cls).get("divisible", False)) and cls.__module__ != "__main__"


def free_cores(busy_threads: int, ranks_here: int = 1) -> int:
    """How many cores of this host one rank can give to rewards while `busy_threads` threads of it compute."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(
        OSError, ValueError
    ):  # a container may have less: microseconds of all cores in each period
        quota, period = QUOTA.read_text(encoding="utf-8").split()
        cores = min(cores, int(quota) // int(period))
    return max(0, cores // max(ranks_here, 1) - busy_threads)


class NotDivided(Exception):
    """A process did not give the values that it was asked for."""


class RewardProcesses:
    """Up to `limit` processes that score dialogues for a run; with less than 2 there are none.

    They start when `consider` sees a divisible reward that took more than `SHARE` of an iteration, and are used once they are
    ready; until then, and whenever one of them cannot answer, the reward is computed in this process. They end with `close`,
    with this object, and with this process, however that ends.
    """

    def __init__(self, limit: int):
        self.limit = min(limit, AT_MOST)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._greeting: BackgroundCall[None] | None = None
        self._in_use = threading.Lock()
        self._finalizer: Callable[[], Any] = lambda: None

    def consider(self, seconds: float, of_iteration: float) -> None:
        """Start the processes if divisible rewards took `seconds` of an iteration of `of_iteration` seconds, and that is much."""
        if self.limit < 2 or self._greeting is not None or seconds <= SHARE * of_iteration:
            return
        logger.info(
            "the rewards in Python took %.0f %% of the iteration: %d processes share them from now on",
            100 * seconds / of_iteration,
            self.limit,
        )
        self._processes = [_started() for _ in range(self.limit)]
        self._finalizer = weakref.finalize(self, _end, self._processes)
        self._greeting = BackgroundCall(self._greet)

    def _greet(self) -> None:
        for process in self._processes:
            _receive(process)

    @property
    def are_ready(self) -> bool:
        """Whether the processes run and have imported what they need."""
        return self._greeting is not None and self._greeting.is_done and bool(self._processes)

    def values(self, reward: BaseReward, method: str, dialogues: list[Any], seconds: float | None) -> list[Any] | None:
        """What the method of a divisible reward returns for the dialogues, divided among the processes, in their order.

        None without ready processes, and if one of them raises, ends or gives another number of values, after which they are not
        used any more: then the caller computes the values itself, and meets the same error. A process that needs more than
        `seconds` writes its stack to stderr and ends.
        """
        count = min(len(self._processes), len(dialogues) // ROWS_EACH)
        if count < 2 or not self.are_ready or not is_divisible(reward):
            return None
        try:
            with self._in_use:
                return self._divided(count, reward, method, dialogues, seconds)
        except Exception as error:  # of any kind: pickling runs the reward's own code
            logger.warning(
                "reward '%s': the processes that share it are not used any more, because of %s: %s",
                reward.name,
                type(error).__name__,
                error,
            )
            self.close()
            return None
        except BaseException:
            self.close()  # an answer may be under way
            raise

    def _divided(
        self, count: int, reward: BaseReward, method: str, dialogues: list[Any], seconds: float | None
    ) -> list[Any]:
        frozen, some = pickle.dumps(reward), self._processes[:count]
        bounds = [i * len(dialogues) // count for i in range(count + 1)]
        parts = [dialogues[start:end] for start, end in pairwise(bounds)]
        for process, part in zip(some, parts, strict=True):
            _send(process, (frozen, method, part, seconds))
        values: list[Any] = []
        for process, part in zip(some, parts, strict=True):
            found, problem = _receive(process)
            if problem or len(found) != len(part):
                raise NotDivided(problem or f"{len(found)} values for {len(part)} dialogues")
            values += found
        return values

    def close(self) -> None:
        """End the processes at once; they are not started again."""
        self._finalizer()
        self._processes = []


def _started() -> "subprocess.Popen[bytes]":
    """A process without the device and with one thread, which signals from the terminal do not reach."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [
        sys.executable,
        "-c",
        f"import sys, pickle; sys.path[:] = pickle.load(sys.stdin.buffer); import {__name__} as here; here.serve()",
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True)
    with contextlib.suppress(OSError):  # it has ended, which its greeting shows
        _send(process, sys.path)
    return process


def _send(process: "subprocess.Popen[bytes]", message: Any) -> None:
    stream: Any = process.stdin
    pickle.dump(message, stream)
    stream.flush()


def _receive(process: "subprocess.Popen[bytes]") -> Any:
    stream: Any = process.stdout
    return pickle.load(stream)


def _end(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # what was not written yet is lost
                stream.close()  # type: ignore[union-attr]


def serve() -> None:
    """What a process does: answer each task from stdin on stdout, and end with its input, which ends with the run's process.

    An answer is the list of values and what went wrong, if something did. What a reward prints goes to stderr.
    """
    tasks, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    queue: SimpleQueue[Task] = SimpleQueue()
    threading.Thread(target=_read, args=(tasks, queue), daemon=True).start()
    _answer(answers, "ready")
    rewards: dict[bytes, BaseReward] = {}
    while True:
        frozen, method, dialogues, seconds = queue.get()
        try:
            if frozen not in rewards:
                rewards = {frozen: pickle.loads(frozen)}
            _answer(answers, (_scored(getattr(rewards[frozen], method), dialogues, seconds), ""))
        except BaseException as error:  # of any kind: the run's process computes the same and reports it
            _answer(answers, ([], f"{type(error).__name__}: {error}"))


def _scored(call: Callable[[list[Any]], Any], dialogues: list[Any], seconds: float | None) -> list[Any]:
    if seconds is not None:
        faulthandler.dump_traceback_later(max(seconds, 0.1), exit=True)
    try:
        values = call(dialogues)
        values = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(values, (list, tuple)):
            raise NotDivided(f"{type(values).__name__} in place of a list")
        return list(values)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _read(tasks: IO[bytes], queue: "SimpleQueue[Task]") -> None:
    with contextlib.suppress(Exception):  # at the end of the input
        while True:
            queue.put(pickle.load(tasks))
    os._exit(0)


def _answer(answers: IO[bytes], message: Any) -> None:
    found = pickle.dumps(message)
    try:
        answers.write(found)
        answers.flush()
    except OSError:  # the run's process has ended
        os._exit(0)
