"""A time limit on rewards: one that takes too long is left behind, and the run stops."""

import sys
from collections.abc import Callable
from typing import TypeVar

from rlhf_dialog.errors import RunStopped
from rlhf_dialog.user_code import TimeLimit, all_stacks, ends_the_process, within

T = TypeVar("T")


class RewardTimeout(RunStopped):
    """A reward took longer than `reward_timeout_s`; `__cause__` holds the stacks of all threads."""


class Stacks(Exception):
    """The stacks of all threads, as text."""


def stop_after(seconds: float | None, name: str, work: Callable[[], T]) -> T:
    """Return or raise what `work` does. With `seconds` None there is no limit, and it runs in the caller's own thread.

    After `seconds`, raises RewardTimeout, which names the reward, and writes the stacks of all threads to stderr. The work
    cannot be stopped, so its thread goes on, but does not keep the process alive. If the work blocks every other thread,
    the process ends (`ends_the_process`).
    """
    if seconds is None:
        return work()
    with ends_the_process(seconds):
        try:
            return within(seconds, work)
        except TimeLimit:
            stacks = all_stacks()
            sys.stderr.write(stacks)
            raise RewardTimeout(
                f"reward '{name}' did not finish within {round(seconds, 1):g} seconds (what was left of reward_timeout_s); "
                "the stacks of all threads show where it hangs; the last checkpoint is kept"
            ) from Stacks(stacks)
