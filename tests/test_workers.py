"""Processes that work for this one: what they answer, how their errors and their end are noticed, and what they run."""

import os
import signal

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.workers import SIGNALS, Worker, WorkerFailed
from tests.parts.processes import run_python


class Calls:
    """Answers with the number of calls so far and what a function returns."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, message):
        self.count += 1
        function, *args = message
        return self.count, function(*args)


def fail(error):
    raise error


@pytest.fixture
def worker():
    started = Worker(Calls, runs_script=False, settings={"COLOUR": "green"})
    assert started.receive() is None
    yield started
    started.kill()


def asked(worker, *message):
    worker.send(message)
    return worker.receive()


def test_a_worker_remembers_what_it_began_and_goes_on_after_an_error(worker):
    assert asked(worker, os.getenv, "COLOUR") == (1, "green")
    for error, report in ((UserError("use another one"), "use another one"), (SystemExit(4), "raise error")):
        with pytest.raises(WorkerFailed) as caught:
            asked(worker, fail, error)
        assert (caught.value.kind, caught.value.text) == (type(error).__name__, str(error))
        assert report in caught.value.report
    with pytest.raises(WorkerFailed, match=r"PicklingError|AttributeError"):
        asked(worker, eval, "lambda: 0")
    for signum in SIGNALS:
        os.kill(worker.pid, signum)
    assert asked(worker, os.getpid) == (5, worker.pid)
    assert worker.pid != os.getpid()


def test_messages_do_not_wait_for_answers(worker):
    for _ in range(20):
        worker.send((len, b"x" * 1_000_000))
    assert [worker.receive()[0] for _ in range(20)] == list(range(1, 21))


@pytest.mark.parametrize(("how", "said"), [("killed", "has ended by signal 9"), ("exits", "has ended with code 7")])
def test_an_end_is_noticed_and_described(worker, how, said):
    with pytest.raises(TimeoutError):
        worker.receive(0.0)
    if how == "killed":
        os.kill(worker.pid, signal.SIGKILL)
    else:
        worker.send((os._exit, 7))
    with pytest.raises(EOFError):
        worker.receive()
    assert worker.how_it_ended() == said
    worker.kill()
    worker.kill()  # what has ended stays so


def test_files_of_the_working_directory_are_not_imported(tmp_path, monkeypatch):
    (tmp_path / "multiprocessing.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    started = Worker(Calls, runs_script=False)
    assert started.receive() is None
    started.kill()


SCRIPT = """
import os, sys
from rlhf_dialog.workers import Worker
print(__name__, flush=True)
def name():
    print("worked", flush=True)
if GUARD:
    worker = Worker(name if sys.argv[1] == "True" else os.getpid, runs_script=sys.argv[1] == "True")
    try:
        worker.receive()
    except EOFError:
        print(worker.how_it_ended())
    worker.kill()
"""


@pytest.mark.parametrize(
    ("guard", "runs_script", "said"),
    [
        ('__name__ == "__main__"', True, ["__main__", "__mp_main__", "worked"]),
        ('__name__ == "__main__"', False, ["__main__"]),
        ("True", True, ["__main__", "__mp_main__", "has ended with code 1"]),  # it starts no worker of its own
    ],
)
def test_whether_the_script_runs_again(tmp_path, guard, runs_script, said):
    (tmp_path / "script.py").write_text(SCRIPT.replace("GUARD", guard), encoding="utf-8")
    ran = run_python(tmp_path / "script.py", str(runs_script))
    assert ran.stdout.split("\n")[:-1] == said, ran.stderr
    assert ("An attempt has been made to start a new process" in ran.stderr) == (guard == "True")
