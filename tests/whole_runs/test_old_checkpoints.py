"""A run that an earlier version began is continued; `tests/parts/old_run` was written by version 0.1.0 as of 2026-11-21.

It is the run of `run.yaml` on `tiny.write_data(data, 6)`: the checkpoint of iteration 2, the agent of that iteration, and the
metrics of all four iterations.
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


FORMULAS = """
  - the losses: a token weighs the same in every minibatch, however long its response is
  - the value normaliser: computed in double precision
  - LengthMatch: the value of the nearest reference, not of the first
  - the turn_separator: one that the tokenizer merges with the space before it ends a response; one inside a turn is \
replaced by a space (other separators: no change)
  - kl_hold is new: kept at false
  - kl_coef_max is new: kept at null"""


def test_it_goes_on_and_names_each_formula_that_changed(run_folder, caplog):
    """Up to the first update everything is as the old version computed it; its KL coefficient fell from the start."""
    assert main(["--config", str(OLD / "run.yaml"), "--resume"]) == 0
    found, expected = numbers(run_folder / "metrics.jsonl"), numbers(OLD / "run" / "metrics.jsonl")
    assert len(found) == len(expected) == 4
    assert found[:2] == expected[:2]
    before_the_update = [name for name in expected[2] if name.startswith(("objective/", "reward/", "response/"))]
    assert {name: found[2][name] for name in before_the_update} == pytest.approx(
        {name: expected[2][name] for name in before_the_update}, rel=1e-4, abs=1e-6
    )
    assert [line["objective/kl_coef"] for line in found] == [0.2 * 0.98**i for i in range(4)]
    notices = [text for text in caplog.messages if "was written by an earlier version" in text]
    assert len(notices) == 1
    assert notices[0].endswith(f"the run goes on, but not to the same numbers:{FORMULAS}")


def test_its_new_checkpoint_is_continued_without_a_notice_and_with_the_same_meanings(run_folder, caplog):
    main(["--config", str(OLD / "run.yaml"), "--resume"])
    caplog.clear()
    assert main(["--config", str(OLD / "run.yaml"), "--resume", "--max_iterations", "6"]) == 0
    assert "earlier version" not in caplog.text
    assert "kl_hold" not in caplog.text
    assert numbers(run_folder / "metrics.jsonl")[-1]["objective/kl_coef"] == pytest.approx(0.2 * 0.98**5)


def test_a_coefficient_above_the_new_bound_goes_on(run_folder):
    assert main(["--config", str(OLD / "run.yaml"), "--resume", "--kl_coef", "12"]) == 0
    assert main(["--config", str(OLD / "run.yaml"), "--experiment_name", "new", "--kl_coef", "12"]) == 0
    assert [line["objective/kl_coef"] for line in numbers(run_folder.parent / "new" / "metrics.jsonl")] == [12.0] * 4


def test_a_new_key_that_the_user_sets_is_obeyed(run_folder):
    assert main(["--config", str(OLD / "run.yaml"), "--resume", "--kl_hold", "true"]) == 0
    assert numbers(run_folder / "metrics.jsonl")[-1]["objective/kl_coef"] == pytest.approx(0.2 * 0.98**2)


def test_its_agent_answers(run_folder):
    reply = ChatAgent.load(run_folder / "best_agent").chat("Where is Ada ?")
    assert isinstance(reply, str)
