"""SIGTERM and SIGINT in whole runs: what is saved, how the run ends, and that --resume continues it exactly."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rlhf_dialog import BaseReward, RewardFactory, main
from rlhf_dialog.commands.supervised import train_sft
from rlhf_dialog.training.supervised import stage
from tests.parts.processes import HANGING, start_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="signals of POSIX"),
    pytest.mark.usefixtures("handlers"),
]
SCRIPT = """
import sys, time
from rlhf_dialog import BaseReward, RewardFactory, main

@RewardFactory.register("Vowels")
class Vowels(BaseReward):
    def __call__(self, dialogues):
        time.sleep(0.1)
        return [sum(letter in "aeiou" for letter in d.response) / 10 for d in dialogues]

sys.exit(main(sys.argv[1:]))
"""


class Vowels(BaseReward):
    """Sends this process the signal in its `at`th call, once; 0: never. The same reward in the eyes of --resume."""

    at, signum, calls = 0, signal.SIGTERM, 0

    def __call__(self, dialogues):
        Vowels.calls += 1
        if Vowels.calls == Vowels.at:
            signal.raise_signal(Vowels.signum)
        return [sum(letter in "aeiou" for letter in d.response) / 10 for d in dialogues]


def signal_at(at: int, signum: int = signal.SIGTERM) -> None:
    Vowels.at, Vowels.signum, Vowels.calls = at, signum, 0


class Hasty(BaseReward):
    def __init__(self):
        signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def run(world, tmp_path, monkeypatch):
    """`run(name, "--key", "value")` runs main in an empty folder; returns the exit code, or that of its SystemExit."""
    monkeypatch.chdir(tmp_path)
    signal_at(0)
    monkeypatch.setattr(RewardFactory, "classes", {**RewardFactory.classes, "Vowels": Vowels, "Hasty": Hasty})
    settings = {
        "model_path": str(world / "model"),
        "env": {"args": {"data_path": str(world / "data")}},
        "reward_class": {"id": "Vowels"},
        **{"rollout_batch_size": 4, "num_mini_batch": 2, "ppo_epoch": 1, "max_new_tokens": 5, "max_prompt_length": 40},
        **{"max_iterations": 5, "save_interval": 3, "lr": 1e-3, "device": "cpu", "pytorch_threads": 1},
    }
    (tmp_path / "ppo.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")

    def run(name: str, *words: str) -> int:
        try:
            return main(["--config", "ppo.yaml", "--experiment_name", name, *words])
        except SystemExit as end:
            return end.code

    return run


def rows(name: str) -> list[dict]:
    lines = (Path("run_results") / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(("time/", "FPS"))}
        for line in lines
    ]


def leftovers() -> list[str]:
    """Temporary files of a run folder."""
    return [str(path) for path in Path("run_results").rglob("*") if path.name.endswith((".tmp", ".old", ".partial"))]


@pytest.mark.parametrize(("at", "signum"), [(2, signal.SIGTERM), (5, signal.SIGINT)])
def test_the_iteration_is_saved_and_resuming_continues_it_exactly(run, signum, at, capfd):
    """5 is the last iteration."""
    signal_at(at, signum)
    assert run("cut") == 128 + signum
    folder = Path("run_results/cut")
    assert (folder / "checkpoints" / "latest").read_text(encoding="utf-8").strip() == f"iter_{at:06d}"
    assert [row["iteration"] for row in rows("cut")] == list(range(1, at + 1))
    assert not (folder / "agent").exists()
    assert leftovers() == []
    text = capfd.readouterr().err
    assert f"saved after iteration {at}; continue with --resume" in text
    assert f"rlhf-dialog export --run {folder} --output DIR\n" in text
    assert "Traceback" not in text
    assert run("cut", "--resume") == 0
    assert run("whole") == 0
    assert rows("cut") == rows("whole")
    model = "agent/model.safetensors"
    assert (folder / model).read_bytes() == (Path("run_results/whole") / model).read_bytes()


def test_a_signal_while_it_loads_leaves_nothing(run, capfd):
    assert run("cut", "--reward_class", "{id: Hasty}") == 143
    assert not Path("run_results").exists()
    assert "Traceback" not in capfd.readouterr().err


def wait_until(reached: Callable[[], bool], process: subprocess.Popen) -> None:
    """Until `reached()`; fails when the process ends before."""
    end = time.monotonic() + HANGING
    while not reached():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_process_that_gets_sigterm_is_continued_exactly(run):
    """The signal comes from outside, at whatever moment of an iteration it happens to be."""
    Path("script.py").write_text(SCRIPT, encoding="utf-8")
    words = ["--config", "ppo.yaml", "--max_iterations", "1000", "--save_interval", "1000", "--experiment_name", "cut"]
    process = start_python("script.py", *words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    metrics = Path("run_results/cut/metrics.jsonl")
    wait_until(lambda: metrics.exists() and metrics.read_text(encoding="utf-8").count("\n") >= 3, process)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=HANGING)[1]
    assert process.returncode == 143, errors
    assert "Traceback" not in errors
    saved = Path("run_results/cut/checkpoints/latest").read_text(encoding="utf-8").strip()
    done = int(saved.removeprefix("iter_"))
    assert 3 <= done == len(rows("cut"))
    assert run("cut", "--max_iterations", str(done + 2), "--resume") == 0
    assert run("whole", "--max_iterations", str(done + 2)) == 0
    assert len(rows("whole")) == done + 2
    assert rows("cut") == rows("whole")


def test_a_supervised_training_leaves_no_half_written_folder(world, tmp_path, monkeypatch, capfd):
    """The signal comes when the loss of a step is logged, in the middle of the library's training loop."""
    steps = []
    monkeypatch.setattr(
        stage.LossLines, "on_log", lambda *_, **__: (steps.append(1), signal.raise_signal(signal.SIGTERM))
    )
    sizes = (
        "--n_layer 1 --n_embd 32 --n_head 2 --vocab_size 300 --evals 1 --max_steps 40 --device cpu --pytorch_threads 1"
    )
    try:
        code = train_sft(["--data_path", str(world / "data"), "--output", str(tmp_path / "out"), *sizes.split()])
    except SystemExit as end:
        code = end.code
    assert code == 143
    assert len(steps) == 1
    assert list(tmp_path.iterdir()) == []
    assert "Traceback" not in capfd.readouterr().err
