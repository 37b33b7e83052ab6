"""The error of a reward that fails, with the line that its author can fix."""

from collections.abc import Iterator
from contextlib import contextmanager

from rlhf_dialog.errors import USER_CODE_RAISES, RunStopped, SignalExit, UserError
from rlhf_dialog.user_code import frames_of, in_file_of, line_of


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
        raise reward_error(name, cls, error) from error


def reward_error(name: str, cls: type, error: BaseException) -> RewardError:
    """The error, naming the deepest frame in the file of the reward's class: the line that its author can fix."""
    frames = frames_of(error)
    frame = (in_file_of(cls, frames) or frames)[-1]
    return RewardError(f"reward '{name}' raised {type(error).__name__}: {error} at {line_of(frame)}")
