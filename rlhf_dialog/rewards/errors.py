"""The error of a reward that fails, with the line that its author can fix, and the time limit on rewards."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rlhf_dialog import user_code
from rlhf_dialog.errors import USER_CODE_RAISES, RunStopped, SignalExit, UserError


class RewardError(UserError):
    """A reward raised or returned something unusable; `__cause__` is the reward's own exception, if it raised."""


@contextmanager
def as_reward_error(name: str, cls: type) -> Iterator[None]:
    """Turn exceptions of the reward `name` (class `cls`) in the block into a RewardError that names reward and line.

    Ctrl-C and the end that a signal asks for pass; a SystemExit of the reward's own does not.
    """
    try:
        yield
    except (UserError, RunStopped, SignalExit):
        raise
    except USER_CODE_RAISES as error:
        frames = user_code.extract_frames(error)
        own = user_code.frames_in_class_file(cls, frames)
        users = user_code.outside_libraries(own) or user_code.outside_libraries(frames)
        frame = (users or own or frames)[-1]  # the line that its author can fix
        where = user_code.format_line(frame)
        raise RewardError(f"reward '{name}' raised {type(error).__name__}: {error} at {where}") from error


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
    with user_code.ends_the_process(seconds):
        try:
            return user_code.run_with_timeout(seconds, work)
        except user_code.TimeLimit:
            stacks = user_code.all_stacks()
            sys.stderr.write(stacks)
            left = max(round(seconds, 1), 0)
            raise RewardTimeout(
                f"reward '{name}' did not finish within {left:g} seconds (what was left of reward_timeout_s); "
                "the stacks of all threads show where it hangs; the last checkpoint is kept"
            ) from Stacks(stacks)
