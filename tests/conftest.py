"""Every test runs offline and with one thread."""

import signal


def pytest_configure(config):
    if config.getoption("numprocesses", 0) and not hasattr(config, "workerinput"):
        return  # the process that only hands tests to workers needs neither torch nor hypothesis
    from tests.parts import offline  # noqa: F401  before torch

    # isort: split
    from hypothesis import HealthCheck, settings

    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background; the tests send SIGINT to themselves
    signal.signal(signal.SIGINT, signal.default_int_handler)
