"""The error of a reward that fails, with the line that its author can fix."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_dialog.errors import USER_CODE_RAISES, RunStopped, SignalExit, UserError


class RewardError(UserError):
    """A reward raised or returned something unusable; `__cause__` is the reward's own exception, if it raised."""


@contextmanager
def named(name: str, cls: type) -> Iterator[None]:
    """Turn exceptions of the reward `name` (class `cls`) in the block into a RewardError that names reward and line.

    Ctrl-C and the end that a signal asks for pass; a SystemExit of the reward's own does not.
    """
    try:
        yield
    except (UserError, RunStopped, SignalExit):
        raise
    except USER_CODE_RAISES as error:
        raise raised(name, cls, error) from error


def raised(name: str, cls: type, error: BaseException) -> RewardError:
    """The error, naming the deepest frame in the file of the reward's class: the line that its author can fix."""
    frames = traceback.extract_tb(error.__traceback__)
    own_file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    own = [frame for frame in frames if own_file and Path(frame.filename).resolve() == Path(own_file).resolve()]
    frame = (own or frames)[-1]
    path = Path(frame.filename)
    place = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return RewardError(f"reward '{name}' raised {type(error).__name__}: {error} at {place}:{frame.lineno}")
