"""A run that an earlier version began is continued; `tests/parts/old_run` was written by version 0.1.0 as of 2026-11-21.

It is the run of `run.yaml` on `tiny.write_data(data, 6)`: the checkpoint of iteration 2, the agent of that iteration, and the
metrics of all four iterations, of which the last two are what a continued run must find.
"""

import json
import shutil
from pathlib import Path

import pytest
import tiny
from processes import ROOT

from rlhf_dialog import ChatAgent, main

OLD = ROOT / "tests" / "parts" / "old_run"
CLOCKS = ("time/", "FPS")


@pytest.fixture
def run_folder(tmp_path, monkeypatch) -> Path:
    """The old run as it was after two iterations, in a working directory with its model and data."""
    monkeypatch.chdir(tmp_path)
    tiny.write_data(tmp_path / "data", 6)
    shutil.copytree(OLD / "model", tmp_path / "model")
    folder = shutil.copytree(OLD / "run", tmp_path / "run_results" / "old")
    (folder / "checkpoints" / "latest").write_text("iter_000002", encoding="utf-8")
    (folder / "checkpoints" / "best").write_text("iter_000002", encoding="utf-8")
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:2]), encoding="utf-8")
    return folder


def numbers(path: Path) -> list[dict[str, float]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [{k: x for k, x in json.loads(line).items() if not k.startswith(CLOCKS)} for line in lines]


def test_it_goes_on_to_the_numbers_of_the_old_version(run_folder):
    assert main(["--config", str(OLD / "run.yaml"), "--resume"]) == 0
    found, expected = numbers(run_folder / "metrics.jsonl"), numbers(OLD / "run" / "metrics.jsonl")
    assert len(found) == len(expected) == 4
    for line, wanted in zip(found, expected, strict=True):
        assert line == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_its_agent_answers(run_folder):
    reply = ChatAgent.load(run_folder / "best_agent").chat("Where is Ada ?")
    assert isinstance(reply, str)
