"""Runs of policies that are killed before any change of the disk, that meet a full disk, or get a signal, lose no iteration.

All runs but those that get signals are forked from a process that has imported everything already.
"""

import json
import signal
import subprocess

import pytest
import yaml

from tests.parts.policy_runs import SMALL, domain_file, numbers
from tests.parts.processes import HANGING, ROOT, output_of, start_python

pytestmark = pytest.mark.slow
SCRIPT = ROOT / "scripts" / "train_policy.py"
STEPS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "write", "ftruncate")
PROGRAM = """
import hashlib, json, os, resource, signal, sys
from pathlib import Path
import rlhf_dialog.evaluation.plot
from rlhf_dialog.task_oriented.commands.train_policy import main
from rlhf_dialog.runs.checkpoint import newest_checkpoint

config, folder, every, first = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
steps, done = STEPS, [0]

def counted(real, last):
    def step(*args, **options):
        done[0] += 1
        if done[0] == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)
    return step

def forked(name, last=None, limit=None):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        for step in steps if last else ():
            setattr(os, step, counted(getattr(os, step), last))
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        code = main(["--config", config, "--experiment_name", name, "--resume", "auto"])
        if last:
            print(done[0], flush=True)
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def found(name):
    run = folder / "runs" / name
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [{k: v for k, v in row.items() if not k.startswith("time/") and k != "FPS"} for row in rows]
    files = sorted(path for path in (run / "agent").iterdir() if path.suffix == ".safetensors")
    return [rows, [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]]

def position(name):
    run = folder / "runs" / name
    newest = newest_checkpoint(run / "checkpoints")
    lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").is_file() else []
    return len(lines), int(newest.name[5:]) if newest else 0

assert forked("whole") == 0, (folder / "said").read_text()
whole = found("whole")
if every:
    for last in range(first, 10**6, every):
        code = forked(f"run{last}", last)
        if code == 0:
            break
        lines, saved = position(f"run{last}")
        again = forked(f"run{last}")
        print(json.dumps([last, code, lines, saved, again, again == 0 and found(f"run{last}") == whole]), flush=True)
else:
    code = forked("full", limit=first)
    lines, saved = position("full")
    said = (folder / "said").read_text()
    print(json.dumps([said, code, lines, saved, forked("full"), found("full") == whole]))
""".replace("STEPS", repr(STEPS))


@pytest.fixture
def config(tmp_path):
    keys = {"batchsz": 20, "epoch": 3, "eval_interval": 2, "eval_dialogues": 2}
    keys |= {"save_interval": 1, "keep_checkpoints": 1}
    place = {"domain": str(domain_file(tmp_path)), "run_dir": str(tmp_path / "runs"), "experiment_name": None}
    path = tmp_path / "tea.yaml"
    path.write_text(yaml.safe_dump(SMALL | keys | place), encoding="utf-8")
    return path


def killed(config, every, first):
    lines = output_of("-c", PROGRAM, config, config.parent, str(every), str(first)).splitlines()
    return [json.loads(line) for line in lines if line.startswith("[")]


def check_killed(rows):
    assert all(code == -signal.SIGKILL for _, code, *_ in rows)
    assert all(saved >= lines - 1 for _, _, lines, saved, *_ in rows)  # a line is written just before its checkpoint
    assert {saved for _, _, _, saved, *_ in rows} >= {0, 1, 2}
    assert [(last, again) for last, *_, again, same in rows if again or not same] == []


def test_a_run_that_is_killed_at_any_change_of_the_disk_goes_on_to_the_same_numbers(config):
    rows = killed(config, every=23, first=3)
    assert len(rows) >= 5
    check_killed(rows)


def test_a_full_disk_ends_with_a_message_and_the_run_goes_on(config):
    ((said, code, lines, saved, again, same),) = killed(config, every=0, first=3000)
    assert (code, again, same) == (2, 0, True)
    assert "cannot be written" in said
    assert "Traceback" not in said
    assert saved >= lines - 1


def test_a_signal_finishes_the_iteration_and_ends_with_its_code(config):
    words = ["--epoch", "100000", "--eval_interval", "0", "--save_interval", "100000", "--log_interval", "1"]
    run = start_python(SCRIPT, "--config", config, *words, stderr=subprocess.PIPE)
    for line in run.stderr:
        if line.startswith("iteration 3 "):
            break
    run.send_signal(signal.SIGTERM)
    said = run.communicate(timeout=HANGING)[1]
    assert run.returncode == 143, said
    rows = numbers(config.parent / "runs" / "tea")
    latest = (config.parent / "runs" / "tea" / "checkpoints" / "latest").read_text(encoding="utf-8")
    assert latest == f"iter_{len(rows):06d}"
    assert "continue with --resume" in said
    assert "export" not in said
