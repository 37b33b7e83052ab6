"""The errors that end a run with a message instead of a traceback, and the exit code of each."""


class UserError(Exception):
    """A mistake that the user can mend: says what, where, and what to do. Shown without a traceback."""

    exit_code = 2


class MissingSplit(UserError):
    """The data can be read, but has no such split."""


class RunStopped(Exception):
    """A check that every run makes has failed (a bad number, a broken identity): the run stopped itself."""

    exit_code = 3
