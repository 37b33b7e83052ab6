"""What runs of users and of persons share: a folder that is checked before anything is built, and one way to save."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.runs.run import PolicyRun
from tests.parts.policy_runs import policy_run


def test_a_folder_in_use_is_refused_before_anything_is_built(tmp_path, monkeypatch):
    run = policy_run(tmp_path, epoch=1)
    run.folder.mkdir(parents=True)
    (run.folder / "metrics.jsonl").write_text("{}\n", encoding="utf-8")
    (run.folder / "checkpoints").mkdir()
    monkeypatch.setattr(PolicyRun, "_build", lambda self: pytest.fail("something was built"))
    with pytest.raises(UserError):
        run.train()


def test_a_checkpoint_says_whose_it_is(tmp_path):
    run = policy_run(tmp_path, epoch=1)
    run.train()
    (path,) = run.checkpoints.glob("iter_*/trainer.json")
    state = json.loads(path.read_text(encoding="utf-8"))
    assert state["identity"] == run.identity
    assert (state["domain"], state["iteration"]) == (run.training_world.name, 1)
