"""Processes of a stage: what is run, what a failure says, how far a log is, and that they end with the one that began them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.dailydialog import jobs
from experiments.dailydialog.jobs import Job, run_jobs, share_in
from rlhf_dialog.errors import UserError

WRITES = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('x'); print('step 1 of 2: loss 3.0')"


def job(folder, name="one", code=WRITES, **options):
    output = folder / f"{name}.out"
    return Job(name, ["-c", code, str(output)], folder / f"{name}.log", output, **options)


def test_a_job_runs_once_and_its_lines_are_seen(tmp_path):
    first = run_jobs([job(tmp_path), job(tmp_path, "two")], at_once=2)
    assert {name: [line for _, line in one.lines] for name, one in first.items()} == {
        key: ["step 1 of 2: loss 3.0"] for key in ("one", "two")
    }
    assert all(one.start < one.lines[0][0] <= one.end for one in first.values())
    assert run_jobs([job(tmp_path)]) == {}


def test_a_job_that_fails_is_one_sentence_with_its_last_line(tmp_path):
    code = "import sys; print('half'); print('no room on the disk'); sys.exit(3)"
    with pytest.raises(UserError, match=r"^one: ended with exit code 3; .*one\.log ends with: no room on the disk$"):
        run_jobs([job(tmp_path, code=code)])
    run_jobs([job(tmp_path, code=code, codes=(0, 3))])


def test_threads_are_those_that_were_asked_for(tmp_path):
    code = "import os, sys; print(os.environ.get('OMP_NUM_THREADS'))"
    assert [line for _, line in run_jobs([job(tmp_path, code=code)], threads=7)["one"].lines] == ["7"]


@pytest.mark.parametrize(
    ("line", "tokens", "share"),
    [
        ("step 3 of 12: loss 2.000, 2 min left", None, 0.25),
        ("member 2 of 3, step 4 of 20: loss 6.8", None, (1 + 4 / 20) / 3),
        ("replies: 640 of 1280, 50 %, 20 s left", None, 0.5),
        ("40 % done", None, 0.4),
        ("iteration 3  reward 1.0  KL 0.1  FPS 300  length 12.0  tokens 5000  3 min left", 20_000, 0.25),
        ("train: 71752 pairs", None, None),
        ("evaluation of iteration 3  score 1.0", 20_000, None),
    ],
)
def test_what_a_line_says_of_the_share(line, tokens, share):
    found = share_in(line, tokens)
    assert found is None if share is None else found == pytest.approx(share)


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not say that a parent has died")
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_ends_with_the_process_that_began_it(tmp_path, kind):
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom rlhf_dialog.commands.command_line import exit_on_sigterm\n"
        "from experiments.dailydialog.jobs import Job, run_jobs\nexit_on_sigterm()\nfolder = Path(sys.argv[1])\n"
        "code = 'import os, time, pathlib; pathlib.Path(\"pid\").write_text(str(os.getpid())); time.sleep(600)'\n"
        "run_jobs([Job('one', ['-c', code], folder / 'log', folder / 'out')])\n"
    )
    root = Path(jobs.__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, script, tmp_path], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(root)}
    )
    _until(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text())
    child = int((tmp_path / "pid").read_text())
    parent.send_signal(kind)
    parent.wait(60)
    _until(lambda: not Path(f"/proc/{child}").exists() or "State:\tZ" in Path(f"/proc/{child}/status").read_text())


def _until(is_so):
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen")
