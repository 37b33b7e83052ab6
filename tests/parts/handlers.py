"""The handlers of signals that a test may change: the fixture `handlers` brings them back."""

import signal

import pytest

ENDS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit}


@pytest.fixture
def handlers():
    """`main` installs a handler of SIGTERM for the life of the process."""
    before = {signum: signal.getsignal(signum) for signum in ENDS}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)
