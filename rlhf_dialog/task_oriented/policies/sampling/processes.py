"""Processes that host dialogues, through Gymnasium's vector environments; which process hosts a dialogue changes no number.

Each process is one environment of Gymnasium's `AsyncVectorEnv` that holds several dialogues and never ends, so that no
autoreset wastes a step. What the dialogues say travels in `info`, as objects: with shared memory, texts would arrive as garbage.
Processes come from a server (`forkserver`), never from a fork of this one, which would copy the threads of torch.
"""

import multiprocessing
import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv
from numpy.typing import NDArray

from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.task_oriented.policies.sampling.side_by_side import (
    NOTHING,
    EnvironmentFailed,
    Make,
    Order,
    SideBySide,
    Turn,
)

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT)  # the run decides when to end
MOST = 2**62
Nothing = NDArray[np.float32]
LOST = (EOFError, OSError)


class Hosted(gymnasium.Env[Nothing, NDArray[np.int64]]):
    """The dialogues of one process as one environment: an action is n orders, `info["turns"]` their answers."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as in Gymnasium

    def __init__(self, make: Make, seed: int, num_envs: int, in_worker: bool = True):
        if in_worker and multiprocessing.parent_process() is not None:
            for signum in IGNORED:
                signal.signal(signum, signal.SIG_IGN)
        self.dialogues = SideBySide(make, seed, num_envs)
        self.observation_space = gymnasium.spaces.Box(0.0, 0.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(NOTHING, MOST, (num_envs, 2), np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Nothing, dict[str, Any]]:
        """Nothing is opened before an order asks for it."""
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: NDArray[np.int64]) -> tuple[Nothing, float, bool, bool, dict[str, Any]]:
        """Answer the orders (n, 2); what an environment gets wrong is text, since a traceback cannot travel."""
        try:
            info: dict[str, Any] = {"turns": self.dialogues.step(map(tuple, action.tolist())), "failure": None}
        except UserError as error:
            info = {"turns": [], "failure": str(error)}
        return np.zeros(1, np.float32), 0.0, False, False, info

    def close(self) -> None:
        self.dialogues.close()


class Processes:
    """`num_envs` environments in `process_num` processes, with the methods of `SideBySide`.

    They end with `close`, and with this process, however that ends. Signals from a terminal do not reach them.
    """

    def __init__(self, make: Make, seed: int, num_envs: int, process_num: int, timeout_s: float | None = None):
        """`timeout_s`: seconds in which all processes must have answered; None: no limit."""
        self.num_envs, self.timeout_s = num_envs, timeout_s
        self.each = -(-num_envs // process_num)
        self.process_num = -(-num_envs // self.each)
        multiprocessing.set_forkserver_preload(["__main__", __name__])
        start = partial(Hosted, make, seed, self.each)
        self.envs: Any = AsyncVectorEnv([start] * self.process_num, shared_memory=False, context="forkserver")

    def step(self, orders: Sequence[Order]) -> list[Turn]:
        """One order for each environment. Raises EnvironmentFailed with the traceback of the process, RunStopped when a process
        has ended or does not answer in time."""
        padded = [*orders, *[(NOTHING, NOTHING)] * (self.each * self.process_num - len(orders))]
        try:
            self.envs.step_async(np.array(padded, dtype=np.int64).reshape(self.process_num, self.each, 2))
            info = self.envs.step_wait(self.timeout_s)[-1]
        except multiprocessing.TimeoutError:
            raise self._stopped(
                f"a process that hosts dialogues has not answered within {self.timeout_s:g} seconds (step_timeout_s)"
            ) from None
        except LOST:
            raise self._stopped(self._lost()) from None
        for number, failure in enumerate(info["failure"], 1):
            if failure:
                raise EnvironmentFailed(f"in process {number} of {self.process_num}: {failure}")
        return [turn for turns in info["turns"] for turn in turns][: self.num_envs]

    def close(self) -> None:
        """End the processes at once."""
        for process in self.envs.processes:
            process.kill()
        for process in self.envs.processes:
            process.join()
        with suppress(*LOST):
            self.envs.close(terminate=True)

    def _stopped(self, what: str) -> RunStopped:
        return RunStopped(f"{what}; the finished iterations are kept, go on with --resume")

    def _lost(self) -> str:
        for number, process in enumerate(self.envs.processes, 1):
            process.join(1.0)
            if process.exitcode is not None:
                how = f"by signal {-process.exitcode}" if process.exitcode < 0 else f"with code {process.exitcode}"
                return (
                    f"process {number} of {self.process_num} that hosts dialogues (pid {process.pid}) has ended {how}"
                )
        return "a process that hosts dialogues does not answer any more"
