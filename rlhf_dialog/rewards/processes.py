"""Processes that share the work of METEOR, which is slow in pure Python, and the rule for when a run starts them.

They have neither the device nor more than one thread, and do not run the user's script again.
"""

import contextlib
import logging
import os
import pickle
import threading
from itertools import pairwise
from pathlib import Path

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.meteor import Meteor
from rlhf_dialog.user_code import BackgroundCall
from rlhf_dialog.workers import Worker

logger = logging.getLogger(__name__)
SHARE = 0.1  # of an iteration's time, above which METEOR gets processes
AT_MOST = 16
QUOTA = Path("/sys/fs/cgroup/cpu.max")
WITHOUT_DEVICE = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
ROWS_EACH = 4  # dialogues below which a further process is not worth its message


def free_cores(busy_threads: int, ranks_here: int = 1) -> int:
    """How many cores of this host one rank can give to rewards while `busy_threads` threads of it compute."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # a container may have less: microseconds of all cores in each period
    with contextlib.suppress(OSError, ValueError):
        quota, period = QUOTA.read_text(encoding="utf-8").split()
        cores = min(cores, int(quota) // int(period))
    return max(0, cores // max(ranks_here, 1) - busy_threads)


class RewardProcesses:
    """Up to `limit` processes that compute METEOR for a run; with less than 2 there are none.

    They start when `consider` sees that METEOR took more than `SHARE` of an iteration, and are used once they are ready; until
    then, and whenever one of them cannot answer, this process computes it. They end with `close`, with this object, and with
    this process, however that ends.
    """

    def __init__(self, limit: int):
        self.limit = min(limit, AT_MOST)
        self._workers: list[Worker] = []
        self._greeting: BackgroundCall[None] | None = None
        self._in_use = threading.Lock()

    def consider(self, seconds: float, of_iteration: float) -> None:
        """Start the processes if METEOR took `seconds` of an iteration of `of_iteration` seconds, and that is much."""
        if self.limit < 2 or self._greeting is not None or seconds <= SHARE * of_iteration:
            return
        text = "METEOR took %.0f %% of the iteration: %d processes share it from now on"
        logger.info(text, 100 * seconds / of_iteration, self.limit)
        self._workers = [Worker(_Scorer, runs_script=False, settings=WITHOUT_DEVICE) for _ in range(self.limit)]
        self._greeting = BackgroundCall(self._greet)

    def _greet(self) -> None:
        for worker in self._workers:
            worker.receive()

    @property
    def are_ready(self) -> bool:
        """Whether the processes run and have imported what they need."""
        return self._greeting is not None and self._greeting.is_done and bool(self._workers)

    def scores(self, reward: BaseReward, dialogues: list[Dialogue]) -> list[float] | None:
        """The scores of METEOR, divided among the processes, in the order of the dialogues; None for any other reward.

        None too without ready processes, and if one of them raises or ends, after which they are not used any more: then the
        caller computes the scores itself, and meets the same error.
        """
        count = min(len(self._workers), len(dialogues) // ROWS_EACH)
        if count < 2 or not self.are_ready or type(reward) is not Meteor:
            return None
        try:
            with self._in_use:
                return self._divide(count, reward, dialogues)
        except Exception as error:
            text = "reward '%s': the processes that share it are not used any more, because of %s: %s"
            logger.warning(text, reward.name, type(error).__name__, error)
            self.close()
            return None
        except BaseException:
            self.close()  # an answer may be under way
            raise

    def _divide(self, count: int, reward: Meteor, dialogues: list[Dialogue]) -> list[float]:
        pickled, workers = pickle.dumps(reward), self._workers[:count]
        bounds = [i * len(dialogues) // count for i in range(count + 1)]
        for worker, (start, end) in zip(workers, pairwise(bounds), strict=True):
            worker.send((pickled, dialogues[start:end]))
        return [score for worker in workers for score in worker.receive()]

    def close(self) -> None:
        """End the processes at once; they are not started again."""
        for worker in self._workers:
            worker.kill()
        self._workers = []


class _Scorer:
    """What a process answers a task with: the scores of the dialogues by the pickled reward, which it keeps."""

    def __init__(self) -> None:
        self.rewards: dict[bytes, Meteor] = {}

    def __call__(self, task: tuple[bytes, list[Dialogue]]) -> list[float]:
        pickled, dialogues = task
        if pickled not in self.rewards:
            self.rewards = {pickled: pickle.loads(pickled)}
        return self.rewards[pickled](dialogues)
