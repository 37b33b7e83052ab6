"""The handlers of signals that a test may change: the fixture `handlers` brings them back."""

import signal

import pytest

ENDS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit}
LIKE_SIGTERM = [signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT]


@pytest.fixture
def handlers():
    """`main` installs handlers for the life of the process."""
    before = {signum: signal.getsignal(signum) for signum in (*ENDS, *LIKE_SIGTERM)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)
