"""Processes that host dialogues; which process hosts a dialogue changes no number."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from gymnasium.vector.utils import CloudpickleWrapper

from rlhf_dialog.errors import RunStopped
from rlhf_dialog.task_oriented.policies.sampling import vector_env
from rlhf_dialog.workers import LOST, Worker, WorkerFailed


class Processes:
    """`num_envs` environments in `process_num` processes, with the methods of `VectorEnv`.

    They end with `close`, and with this process, however that ends. Signals do not reach them: the run decides when to end.
    """

    def __init__(
        self, make: vector_env.Make, seed: int, num_envs: int, process_num: int, timeout_s: float | None = None
    ):
        """`make` may be of the user's script. `timeout_s`: seconds in which all processes must have answered; None: no limit."""
        self.num_envs, self.timeout_s = num_envs, timeout_s
        self.each = -(-num_envs // process_num)
        self.process_num = -(-num_envs // self.each)
        begin = partial(_dialogues, CloudpickleWrapper(make), seed, self.each)
        self.workers = [Worker(begin, runs_script=True) for _ in range(self.process_num)]
        for number in range(self.process_num):
            self._answer(number, None)

    def step(self, orders: Sequence[vector_env.Order]) -> list[vector_env.EnvAnswer]:
        """One order for each environment. Raises EnvironmentFailed with the traceback of the process, RunStopped when a process
        has ended or does not answer in time."""
        padded = [*orders, *[(vector_env.NOTHING, vector_env.NOTHING)] * (self.each * self.process_num - len(orders))]
        for number, worker in enumerate(self.workers):
            try:
                worker.send(padded[number * self.each : (number + 1) * self.each])
            except LOST:
                raise self._lost(number) from None
        deadline = None if self.timeout_s is None else time.monotonic() + self.timeout_s
        answers = [self._answer(number, deadline) for number in range(self.process_num)]
        return [turn for turns in answers for turn in turns][: self.num_envs]

    def close(self) -> None:
        """End the processes at once."""
        for worker in self.workers:
            worker.kill()

    def _answer(self, number: int, deadline: float | None) -> Any:
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return self.workers[number].receive(seconds)
        except WorkerFailed as failure:
            if failure.kind == RunStopped.__name__:
                raise RunStopped(failure.text) from None
            raise vector_env.EnvironmentFailed(
                f"in process {number + 1} of {self.process_num}: {failure.report}"
            ) from None
        except TimeoutError:
            raise _as_run_stopped(
                f"a process that hosts dialogues has not answered within {self.timeout_s:g} seconds (step_timeout_s)"
            ) from None
        except LOST:
            raise self._lost(number) from None

    def _lost(self, number: int) -> RunStopped:
        worker = self.workers[number]
        which = f"process {number + 1} of {self.process_num} that hosts dialogues (pid {worker.pid})"
        return _as_run_stopped(f"{which} {worker.how_it_ended()}")


def _dialogues(make: vector_env.Make, seed: int, num_envs: int) -> Any:
    return vector_env.VectorEnv(make, seed, num_envs).step


def _as_run_stopped(what: str) -> RunStopped:
    return RunStopped(f"{what}; the finished iterations are kept, go on with --resume")
