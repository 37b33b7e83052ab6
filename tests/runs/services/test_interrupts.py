"""SIGTERM and SIGINT: what is finished, what is saved, how the run ends, and that --resume continues it exactly."""

import signal
import threading
import time
from types import SimpleNamespace

import pytest

from rlhf_dialog.distributed.world import World
from rlhf_dialog.runs.services import interrupts
from rlhf_dialog.runs.services.interrupts import Interrupts, WhileWaiting
from tests.parts.handlers import ENDS, LIKE_SIGTERM

pytestmark = pytest.mark.usefixtures("handlers")


class Clock:
    """`time.monotonic` of the module under test, moved by hand."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(interrupts, "time", clock)
    return clock


def at(iteration):
    return SimpleNamespace(iteration=iteration, done=False, world=World())


# the class


@pytest.mark.parametrize("signum", list(ENDS))
def test_without_grace_the_iteration_is_left_at_once(signum, capfd):
    with pytest.raises(ENDS[signum]) as error, Interrupts(0):
        signal.raise_signal(signum)
    assert getattr(error.value, "code", 143) == 143
    assert f"{signum.name}: ending at once" in capfd.readouterr().err


def test_the_last_line_names_the_checkpoint_that_is_kept_or_says_that_there_is_none(tmp_path, capfd):
    for words in ("no checkpoint yet", "iter_000001"):
        watch = Interrupts(0)
        watch.begin(SimpleNamespace(world=World(), folder=tmp_path))
        with pytest.raises(SystemExit), watch:
            signal.raise_signal(signal.SIGTERM)
        assert words in capfd.readouterr().err
        (tmp_path / "checkpoints/iter_000001").mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize("signum", [*ENDS, *LIKE_SIGTERM])
def test_an_iteration_that_ends_in_time_is_finished_and_left_only_when_saved(signum, capfd):
    signal.signal(signum, signal.SIG_DFL)  # a shell may have started the tests with it ignored
    with Interrupts(20, advice=", or export") as watch:
        assert not watch.asked
        signal.raise_signal(signum)
        assert watch.asked
        assert watch.wants_checkpoint(at(2))
        watch.iteration_ended(at(2), saved=False)
        with pytest.raises(ENDS.get(signum, SystemExit)) as error:
            watch.iteration_ended(at(3), saved=True)
    assert getattr(error.value, "code", 128 + signum) == 128 + signum
    assert f"{signum.name}: finishing the iteration" in capfd.readouterr().err


def test_an_iteration_that_takes_longer_is_left_after_the_seconds_of_grace(capfd):
    start = time.monotonic()
    with Interrupts(0.3):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit) as error:
            time.sleep(600)
    assert error.value.code == 143
    assert time.monotonic() - start > 0.2
    assert "takes longer than grace_seconds" in capfd.readouterr().err


def test_a_second_signal_ends_the_process_but_not_an_echo_of_the_first(clock, monkeypatch):
    ends, second = [], signal.SIGINT
    monkeypatch.setattr(interrupts.os, "_exit", ends.append)
    with Interrupts(20):
        signal.raise_signal(signal.SIGTERM)
        clock.now += 0.1
        signal.raise_signal(signal.SIGTERM)
        assert ends == []
        clock.now += 2
        signal.raise_signal(second)
        assert ends == [128 + second]


def test_a_signal_is_obeyed_when_nobody_reads_what_it_says(monkeypatch):
    def broken(*_):
        raise BrokenPipeError

    monkeypatch.setattr(interrupts.os, "write", broken)
    with Interrupts(20) as watch:
        signal.raise_signal(signal.SIGTERM)
        assert watch.asked


def test_the_handlers_of_before_come_back_and_an_ignored_signal_stays_ignored():
    mine = lambda *_: None  # noqa: E731
    signal.signal(signal.SIGTERM, mine)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts(20):
        assert signal.getsignal(signal.SIGTERM) is not mine
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is mine
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_outside_the_main_thread_nothing_is_installed():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with Interrupts(20) as watch:
            watch.iteration_ended(at(1), saved=True)
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("signum", list(ENDS))
def test_a_person_is_waited_for_until_a_signal_and_what_is_saved_is_finished(signum, capfd):
    with WhileWaiting() as watch:
        with pytest.raises(ENDS[signum]), watch.waiting():
            signal.raise_signal(signum)
        assert watch.asked
    with WhileWaiting() as watch:
        signal.raise_signal(signum)
        assert "ending as soon as the dialogue is saved" in capfd.readouterr().err
        with pytest.raises(ENDS[signum]), watch.waiting():
            raise AssertionError("nobody is waited for after a signal")
