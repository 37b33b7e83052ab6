"""Runs that are killed at any moment, or may not write, go on to the very numbers of a run that was left alone.

All processes but one are forked from one that has imported everything (`forked_cli`); the disk and the files see no difference.
"""

import contextlib
import json
import os
import random
import signal
import time

import pytest
import yaml
from safetensors.torch import load_file

from tests.parts.forked_cli import ForkedCLI, wait_for
from tests.parts.ppo_runs import settings
from tests.parts.processes import ROOT, run_python

CLOCKS = ("time/", "FPS", "memory/")
PPO = ("train", "--config", "ppo.yaml")


@pytest.fixture(scope="module")
def cli():
    modules = (
        "rlhf_dialog.runs.agent rlhf_dialog.evaluation.measure transformers.models.gpt2.modeling_gpt2 deepspeed nltk"
    )
    cli = ForkedCLI(*modules.split())
    yield cli
    cli.close()


def write_config(folder, world, **keys):
    changes = {"ppo_epoch": 1, "max_iterations": 6, "save_interval": 2, "eval_interval": 3, "eval_episodes": 3}
    changes |= {"keep_checkpoints": 1, "sample_interval": 0, "use_linear_lr_decay": True}
    folder.mkdir(exist_ok=True)
    (folder / "ppo.yaml").write_text(yaml.safe_dump(settings(world) | changes | keys), encoding="utf-8")
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
def expected(cli, world, tmp_path_factory):
    """What the run leaves when nothing happens to it, and how often it changes the disk."""
    folder = write_config(tmp_path_factory.mktemp("whole"), world)
    changes = cli.changes_of(folder, *PPO)
    assert left_behind(folder) == []
    return results(folder), changes


def kill_somewhere(cli, folder, choice, saving, *words):
    """SIGKILL at a random moment after the next iteration, or while the next checkpoint is written; False if it was over."""
    run, said = folder / "run_results/ppo", folder / "said"

    def lines():
        return (run / "metrics.jsonl").read_bytes().count(b"\n") if (run / "metrics.jsonl").exists() else 0

    pid = cli.start(folder, *PPO, *words)
    wait_for(lambda: "run folder: " in said.read_text(), pid)  # metrics.jsonl is cut before that
    before = lines()
    wait_for(lambda: list(run.glob("checkpoints/.iter_*.tmp")) if saving else lines() > before, pid)
    time.sleep(choice.random() * (0.015 if saving else 0.1))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return cli.end() == -signal.SIGKILL


@pytest.mark.slow
def test_kills_at_random_moments_leave_no_trace(cli, world, tmp_path, expected):
    """In an iteration and while a checkpoint is written; the run ends in a process of its own."""
    folder, choice = write_config(tmp_path, world), random.Random(1)
    assert kill_somewhere(cli, folder, choice, False)
    assert kill_somewhere(cli, folder, choice, True, "--resume")
    done = run_python(ROOT / "train_ppo.py", *PPO[1:], "--resume", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert results(folder) == expected[0]
    assert left_behind(folder) == []


@pytest.mark.parametrize("share", [0.3, pytest.param(0.97, marks=pytest.mark.slow)])
def test_a_kill_before_a_change_of_the_disk(cli, world, tmp_path, expected, share):
    folder = write_config(tmp_path, world)
    assert cli.run(folder, *PPO, step=int(share * expected[1])) == -signal.SIGKILL
    assert cli.run(folder, *PPO, "--resume") == 0, (folder / "said").read_text()
    assert results(folder) == expected[0]
    assert left_behind(folder) == []
    assert not list(folder.rglob("unannounced"))


def said_once(folder, *words):
    """Standard error ends with one message that has these words, and shows no traceback."""
    text = (folder / "said").read_text()
    assert "Traceback" not in text
    assert text.count("\nerror: ") == 1, text
    message = text.split("\nerror: ")[1]
    assert all(word in message for word in words), message


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "name"), [(1_500, "config.yaml"), (30_000, "checkpoints")])
def test_a_file_that_may_not_grow_ends_the_run_with_one_message(cli, world, tmp_path, expected, limit, name):
    folder = write_config(tmp_path, world)
    assert cli.run(folder, *PPO, limit=limit) == 2, (folder / "said").read_text()
    said_once(folder, name, "cannot be written", "File too large")
    assert left_behind(folder) == []
    resume = ["--resume"] if name == "checkpoints" else []
    assert cli.run(folder, *PPO, *resume) == 0, (folder / "said").read_text()
    assert results(folder) == expected[0]
