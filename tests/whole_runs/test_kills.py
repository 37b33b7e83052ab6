"""Runs that are killed at any moment, or meet a full disk, go on to the very numbers of a run that was left alone.

The processes are those of train_ppo.py. All but one are forked from a process that has imported everything already, which
saves the seconds of a start; the disk and the files see no difference.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from tests.parts import disks
from tests.parts.processes import HANGING, ROOT, run_python, start_python

SCRIPT = ROOT / "train_ppo.py"
CLOCKS = ("time/", "FPS", "memory/")
STEPS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "write", "ftruncate")
SERVER = """
from tests.parts import offline
import json, os, resource, runpy, signal, sys
import rlhf_dialog.runs.agent, rlhf_dialog.evaluation.measure, transformers.models.gpt2.modeling_gpt2

def at(count):  # SIGKILL before the `count`th change of the disk by a function of os; all are counted
    done = [0]
    def counted(real):
        def step(*args, **options):
            done[0] += 1
            if done[0] == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)
        return step
    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))
    return done

for line in sys.stdin:
    words, cwd, output, count, limit = json.loads(line)
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    pid = os.fork()
    if pid == 0:
        os.chdir(cwd)
        os.dup2(handle, 1), os.dup2(handle, 2)
        sys.argv = [SCRIPT, *words]
        code, steps = 70, at(count) if count is not None else [0]
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            runpy.run_path(SCRIPT, run_name="__main__")
        except SystemExit as end:
            code = end.code
        except BaseException:
            import traceback
            traceback.print_exc()
        print("steps:", steps[0], flush=True)
        os._exit(code)
    os.close(handle)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Starter:
    """Starts train_ppo.py in `folder`, one process at a time."""

    def __init__(self):
        self.running = False
        program = SERVER.replace("STEPS", repr(STEPS)).replace("SCRIPT", repr(str(SCRIPT)))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = start_python("-c", program, **pipes)

    def start(self, folder, *words, step=None, limit=None):
        """Begin; returns the process id. `step`: SIGKILL before so many changes of the disk; `limit`: bytes of a file."""
        if self.running:
            self.end()  # a test failed before it waited
        request = [["--config", "ppo.yaml", *words], str(folder), str(folder / "said"), step, limit]
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        self.running = True
        return int(self.process.stdout.readline())

    def end(self):
        """Wait; returns the exit code, negative for a signal."""
        self.running = False
        return int(self.process.stdout.readline())

    def run(self, folder, *words, **options):
        self.start(folder, *words, **options)
        return self.end()


@pytest.fixture(scope="module")
def starter():
    starter = Starter()
    yield starter
    starter.process.stdin.close()
    starter.process.wait(HANGING)


def write_config(folder, world, **keys):
    settings = {
        "model_path": str(world / "model"),
        "env": {"args": {"data_path": str(world / "data")}},
        "reward_class": {"id": "CompositeReward", "args": {"parts": [{"id": "LengthMatch", "weight": 0.5}]}},
        **{"rollout_batch_size": 8, "num_mini_batch": 2, "ppo_epoch": 1, "max_new_tokens": 6, "max_prompt_length": 60},
        **{"max_iterations": 9, "save_interval": 2, "eval_interval": 5, "eval_episodes": 3, "keep_checkpoints": 1},
        **{"lr": 1e-3, "critic_lr": 1e-3, "sample_interval": 0, "device": "cpu", "use_linear_lr_decay": True},
        **keys,
    }
    folder.mkdir(exist_ok=True)
    (folder / "ppo.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return folder


def results(folder):
    """Metrics and ledger without the clocks, the best iteration, and the weights that the run ends with."""
    run = folder / "run_results/ppo"
    texts = [(run / name).read_text(encoding="utf-8") for name in ("metrics.jsonl", "ledger.jsonl")]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    rows = [{key: value for key, value in row.items() if not key.startswith(CLOCKS)} for row in rows]
    weights = {}
    for name in ("agent", "best_agent"):
        tensors = load_file(run / name / "model.safetensors") if (run / name).exists() else {}
        weights |= {f"{name}.{key}": tensor.tolist() for key, tensor in tensors.items()}
    best = run / "checkpoints/best"
    return rows, best.read_text() if best.exists() else None, weights


def left_behind(folder):
    """Whatever a finished run must not leave: temporary names, copies, locks."""
    return [path for path in (folder / "run_results").rglob(".*") if path.name.startswith(".")]


@pytest.fixture(scope="module")
def expected(starter, world, tmp_path_factory):
    """What the run leaves when nothing happens to it, and how often it changes the disk."""
    folder = write_config(tmp_path_factory.mktemp("whole"), world)
    assert starter.run(folder, step=-1) == 0, (folder / "said").read_text()
    steps = int((folder / "said").read_text().rsplit("steps: ", 1)[1])
    assert left_behind(folder) == []
    return results(folder), steps


def wait_for(event, pid):
    """Until `event()` is true, or the process is gone."""
    limit = time.monotonic() + HANGING
    while not event() and Path(f"/proc/{pid}/stat").exists() and time.monotonic() < limit:
        time.sleep(0.001)


def kill_somewhere(starter, folder, choice, saving, *words):
    """SIGKILL at a random moment after the next iteration, or while the next checkpoint is written; False if it was over."""
    run, said = folder / "run_results/ppo", folder / "said"

    def lines():
        return (run / "metrics.jsonl").read_bytes().count(b"\n") if (run / "metrics.jsonl").exists() else 0

    pid = starter.start(folder, *words)
    wait_for(lambda: "run folder: " in said.read_text(), pid)  # metrics.jsonl is cut before that
    before = lines()
    wait_for(lambda: list(run.glob("checkpoints/.iter_*.tmp")) if saving else lines() > before, pid)
    time.sleep(choice.random() * (0.015 if saving else 0.1))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return starter.end() == -signal.SIGKILL


@pytest.mark.slow
def test_kills_at_random_moments_leave_no_trace(starter, world, tmp_path, expected):
    """In an iteration and while a checkpoint is written; the run ends in a process of its own."""
    folder, choice = write_config(tmp_path, world), random.Random(1)
    assert kill_somewhere(starter, folder, choice, False)
    assert kill_somewhere(starter, folder, choice, True, "--resume")
    done = run_python(SCRIPT, "--config", "ppo.yaml", "--resume", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "its lock is replaced" in done.stderr
    assert results(folder) == expected[0]
    assert left_behind(folder) == []


@pytest.mark.parametrize("share", [0.3, pytest.param(0.97, marks=pytest.mark.slow)])
def test_a_kill_before_a_change_of_the_disk(starter, world, tmp_path, expected, share):
    folder = write_config(tmp_path, world)
    assert starter.run(folder, step=int(share * expected[1])) == -signal.SIGKILL
    assert starter.run(folder, "--resume") == 0, (folder / "said").read_text()
    assert results(folder) == expected[0]
    assert left_behind(folder) == []
    assert not list(folder.rglob("unannounced"))


# -- before the first checkpoint


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_begins_again(starter, world, tmp_path, expected):
    folder = write_config(tmp_path, world, save_interval=9)
    run = folder / "run_results/ppo"
    pid = starter.start(folder)
    wait_for(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size, pid)
    os.kill(pid, signal.SIGKILL)
    assert starter.end() == -signal.SIGKILL
    assert not list(run.glob("checkpoints/iter_*"))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 2, "obj')
    assert starter.run(folder) == 2
    assert "--resume" in (folder / "said").read_text()
    assert starter.run(folder, "--resume") == 0
    assert "has no checkpoint yet; the run starts from the beginning" in (folder / "said").read_text()
    assert results(folder) == expected[0]


# -- disks and limits


def said_once(folder, *words):
    """Standard error ends with one message that has these words, and shows no traceback."""
    text = (folder / "said").read_text()
    assert "Traceback" not in text
    assert text.count("\nerror: ") == 1, text
    message = text.split("\nerror: ")[1]
    assert all(word in message for word in words), message


def bytes_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "name"), [(1_500, "config.yaml"), (30_000, "checkpoints"), (4_000, "metrics.jsonl")])
def test_a_file_that_may_not_grow_ends_the_run_with_one_message(starter, world, tmp_path, limit, name):
    keys = {"max_iterations": 6, "save_interval": 1 if name == "checkpoints" else 9, "eval_interval": 0}
    folder, whole = (write_config(tmp_path / place, world, **keys) for place in ("parts", "whole"))
    assert starter.run(folder, limit=limit) == 2, (folder / "said").read_text()
    said_once(folder, name, "cannot be written", "File too large")
    assert left_behind(folder) == []
    started = (folder / "run_results/ppo/config.yaml").exists()
    assert starter.run(folder, *(["--resume"] if started else [])) == 0, (folder / "said").read_text()
    assert starter.run(whole) == 0
    assert results(folder) == results(whole)


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of a few checkpoints."""
    with disks.small_disk(tmp_path / "disk", "6m") as place:
        yield place


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_checkpoint_whole(starter, world, tmp_path, small_disk):
    folder = write_config(tmp_path, world, max_iterations=4, save_interval=1, eval_interval=0, run_dir=str(small_disk))
    assert starter.run(folder, "--max_iterations", "1", "--use_linear_lr_decay", "false") == 0, (
        folder / "said"
    ).read_text()
    checkpoints = small_disk / "ppo/checkpoints"
    before = bytes_of(checkpoints)
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(b"x" * (free.f_bavail * free.f_bsize - 200_000))
    assert starter.run(folder, "--use_linear_lr_decay", "false", "--resume") == 2, (folder / "said").read_text()
    said_once(folder, "iter_000002", "cannot be written", "No space left on device")
    assert bytes_of(checkpoints) == before
    (small_disk / "ballast").unlink()
    assert starter.run(folder, "--use_linear_lr_decay", "false", "--resume") == 0, (folder / "said").read_text()
    lines = (small_disk / "ppo/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1, 2, 3, 4]
