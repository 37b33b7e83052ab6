"""Jobs in processes of their own."""

import os
import time
from functools import partial
from pathlib import Path

import pytest

from experiments.policies_table.jobs import MOST_TEXT, run_jobs
from rlhf_dialog.errors import UserError

pytestmark = pytest.mark.slow


def write(path: Path, *names: str) -> None:
    path.write_text(" ".join([str(os.getpid()), *(os.environ[name] for name in names)]), encoding="utf-8")


def fail(error: BaseException) -> None:
    raise error


def test_each_job_has_a_process_of_its_own_with_one_thread(tmp_path):
    jobs = [(n, partial(write, tmp_path / str(n), "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")) for n in range(3)]
    before = dict(os.environ)
    assert sorted(run_jobs(jobs, 2)) == [(0, None), (1, None), (2, None)]
    found = [(tmp_path / str(n)).read_text(encoding="utf-8").split() for n in range(3)]
    assert len({os.getpid(), *(int(pid) for pid, *_ in found)}) == 4
    assert [threads for _, *threads in found] == [["1", "1"]] * 3
    assert dict(os.environ) == before


def test_what_goes_wrong_is_reported_and_the_others_go_on(tmp_path):
    jobs = [
        ("raises", partial(fail, ValueError("x" * 2 * MOST_TEXT + "the end"))),
        ("mistake", partial(fail, UserError("use another one"))),
        ("exits", partial(os._exit, 7)),
        ("killed", partial(os.abort)),
        ("fine", partial(write, tmp_path / "fine")),
    ]
    found = dict(run_jobs(jobs, 1))
    assert found["raises"].rstrip().endswith("the end")
    assert found["mistake"] == "use another one"
    assert "has ended with code 7" in found["exits"]
    assert "has ended by signal 6" in found["killed"]
    assert found["fine"] is None
    assert (tmp_path / "fine").is_file()


def test_a_traceback_names_the_line():
    ((_, found),) = run_jobs([("raises", partial(fail, ValueError("this one")))], 1)
    assert found.startswith("Traceback")
    assert "raise error" in found


def test_the_next_job_is_taken_when_there_is_a_process_for_it(tmp_path):
    taken = []

    def jobs():
        for number in range(3):
            taken.append((number, (tmp_path / str(number - 1)).exists()))
            yield number, partial(write, tmp_path / str(number))

    assert [number for number, _ in run_jobs(jobs(), 1)] == [0, 1, 2]
    assert taken == [(0, False), (1, True), (2, True)]


def test_the_processes_end_when_nobody_waits_for_them(tmp_path):
    jobs = [("short", partial(write, tmp_path / "short")), ("long", partial(time.sleep, 600))]
    running = run_jobs(jobs, 2)
    assert next(running) == ("short", None)
    start = time.monotonic()
    running.close()
    assert time.monotonic() - start < 60
