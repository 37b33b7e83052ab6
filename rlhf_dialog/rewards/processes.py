"""Processes that share the work of rewards in pure Python, and the rule for when a run starts them.

They have neither the device nor more than one thread, and do not run the user's script again.
"""

import contextlib
import faulthandler
import logging
import os
import pickle
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.user_code import BackgroundCall
from rlhf_dialog.workers import Worker, WorkerFailed

logger = logging.getLogger(__name__)
SHARE = 0.1  # of an iteration's time, above which a reward gets processes
AT_MOST = 16
QUOTA = Path("/sys/fs/cgroup/cpu.max")
WITHOUT_DEVICE = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
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
    # a container may have less: microseconds of all cores in each period
    with contextlib.suppress(OSError, ValueError):
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
        self._workers: list[Worker] = []
        self._greeting: BackgroundCall[None] | None = None
        self._in_use = threading.Lock()

    def consider(self, seconds: float, of_iteration: float) -> None:
        """Start the processes if divisible rewards took `seconds` of an iteration of `of_iteration` seconds, and that is much."""
        if self.limit < 2 or self._greeting is not None or seconds <= SHARE * of_iteration:
            return
        logger.info(
            "the rewards in Python took %.0f %% of the iteration: %d processes share them from now on",
            100 * seconds / of_iteration,
            self.limit,
        )
        self._workers = [Worker(_Scores, runs_script=False, settings=WITHOUT_DEVICE) for _ in range(self.limit)]
        self._greeting = BackgroundCall(self._greet)

    def _greet(self) -> None:
        for worker in self._workers:
            worker.receive()

    @property
    def are_ready(self) -> bool:
        """Whether the processes run and have imported what they need."""
        return self._greeting is not None and self._greeting.is_done and bool(self._workers)

    def values(self, reward: BaseReward, method: str, dialogues: list[Any], seconds: float | None) -> list[Any] | None:
        """What the method of a divisible reward returns for the dialogues, divided among the processes, in their order.

        None without ready processes, and if one of them raises, ends or gives another number of values, after which they are not
        used any more: then the caller computes the values itself, and meets the same error. A process that needs more than
        `seconds` writes its stack to stderr and ends.
        """
        count = min(len(self._workers), len(dialogues) // ROWS_EACH)
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
        frozen, some = pickle.dumps(reward), self._workers[:count]
        bounds = [i * len(dialogues) // count for i in range(count + 1)]
        parts = [dialogues[start:end] for start, end in pairwise(bounds)]
        for worker, part in zip(some, parts, strict=True):
            worker.send((frozen, method, part, seconds))
        values: list[Any] = []
        for worker, part in zip(some, parts, strict=True):
            try:
                scores = worker.receive()
            except WorkerFailed as failure:
                raise NotDivided(f"{failure.kind}: {failure.text}") from failure
            if len(scores) != len(part):
                raise NotDivided(f"{len(scores)} values for {len(part)} dialogues")
            values += scores
        return values

    def close(self) -> None:
        """End the processes at once; they are not started again."""
        for worker in self._workers:
            worker.kill()
        self._workers = []


class _Scores:
    """What a process answers a task with: the values. What a reward prints goes to stderr."""

    def __init__(self) -> None:
        os.dup2(2, 1)
        self.rewards: dict[bytes, BaseReward] = {}

    def __call__(self, task: Task) -> list[Any]:
        frozen, method, dialogues, seconds = task
        if frozen not in self.rewards:
            self.rewards = {frozen: pickle.loads(frozen)}
        if seconds is not None:
            faulthandler.dump_traceback_later(max(seconds, 0.1), exit=True)
        try:
            values = getattr(self.rewards[frozen], method)(dialogues)
            values = values.tolist() if hasattr(values, "tolist") else values
            if not isinstance(values, (list, tuple)):
                raise NotDivided(f"{type(values).__name__} in place of a list")
            return list(values)
        finally:
            faulthandler.cancel_dump_traceback_later()
