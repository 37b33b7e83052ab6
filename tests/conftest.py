"""Every test runs offline and with one thread; a worker of pytest-xdist fails an unmarked test that is slow."""

import gc
import os
import signal
import sys

import pytest

UNMARKED = 3.0  # processor seconds of a test and the processes that it started; what takes 1.5 on a quiet core takes twice that
# on a shared one
MARKS = ("slow", "multiprocess", "gpu")


def pytest_configure(config):
    if config.getoption("numprocesses", 0) and not is_worker(config):
        return  # the process that only hands tests to workers needs neither torch nor hypothesis
    gc.disable()
    from tests.parts import offline  # noqa: F401  before torch

    # isort: split
    from hypothesis import HealthCheck, settings

    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")
    if is_worker(config):
        from tests.parts import libraries  # noqa: F401


def pytest_collection_modifyitems(config, items):
    """Whole runs, and what lies outside of tests/, come first: no worker begins a long one when the other has no work left."""

    def is_short(item):
        folders = item.path.relative_to(config.rootpath).parts
        return folders[0] == "tests" and folders[1] != "whole_runs"

    items.sort(key=is_short)


def pytest_collection_finish():
    """Modules live as long as the process: the collector, which would look through millions of objects, passes them over.

    Models are tried on three rows when they are loaded, which takes a third of the time; test_load_checks.py has all of them.
    """
    gc.freeze()
    gc.enable()
    if checks := sys.modules.get("rlhf_dialog.models.load_checks"):
        checks.ROWS = 3


def is_worker(config):
    return hasattr(config, "workerinput")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    before = sum(os.times()[:4])
    result = yield
    seconds = sum(os.times()[:4]) - before
    if is_worker(item.config) and seconds > UNMARKED and not any(map(item.get_closest_marker, MARKS)):
        why = f"took {seconds:.1f} processor seconds, {UNMARKED} are allowed; mark it slow, or make it faster"
        pytest.fail(why, pytrace=False)
    return result


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background; the tests send SIGINT to themselves
    signal.signal(signal.SIGINT, signal.default_int_handler)
