"""What an earlier version left: its agent answers, its checkpoint is refused. `tests/parts/old_run` is of 2026-11-21.

It is the run of `run.yaml` on `tiny.write_data(data, 6)`: the checkpoint of iteration 2, and the agent of that iteration.
"""

import shutil
from pathlib import Path

import pytest

from rlhf_dialog import ChatAgent, main
from tests.parts import tiny
from tests.parts.processes import ROOT

pytestmark = pytest.mark.slow

OLD = ROOT / "tests" / "parts" / "old_run"


@pytest.fixture
def run_folder(tmp_path, monkeypatch) -> Path:
    """The old run in a working directory with its model and data."""
    monkeypatch.chdir(tmp_path)
    tiny.write_data(tmp_path / "data", 6)
    shutil.copytree(OLD / "model", tmp_path / "model")
    folder = shutil.copytree(OLD / "run", tmp_path / "run_results" / "old")
    (folder / "checkpoints" / "latest").write_text("iter_000002", encoding="utf-8")
    (folder / "checkpoints" / "best").write_text("iter_000002", encoding="utf-8")
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:2]), encoding="utf-8")
    return folder


def test_its_checkpoint_is_refused_in_one_sentence_and_stays(run_folder, capsys):
    before = {path: path.read_bytes() for path in run_folder.rglob("*") if path.is_file()}
    assert main(["--config", str(OLD / "run.yaml"), "--resume"]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert "was computed with other formulas" in said
    assert {path: path.read_bytes() for path in before} == before


def test_its_weights_begin_a_new_run(run_folder):
    words = ["--experiment_name", "new", "--resume_weights_only", str(run_folder), "--max_iterations", "1"]
    assert main(["--config", str(OLD / "run.yaml"), *words]) == 0


def test_its_agent_answers(run_folder):
    assert isinstance(ChatAgent.load(run_folder / "best_agent").chat("Where is Ada ?"), str)
