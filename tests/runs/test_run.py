"""A run on the disk: how it begins, is saved, and goes on in its folder."""

import json

import pytest
import torch
import yaml
from trainers import make_trainer, parameters

from rlhf_dialog.errors import UserError
from rlhf_dialog.runs import identity
from rlhf_dialog.runs.run import RunState


def state_in(folder, **keys) -> RunState:
    """A run that has not begun."""
    trainer = make_trainer(**keys)
    made_with = identity.identity_of(trainer.config, trainer.models, trainer.prompts, trainer.scorer.reward)
    return RunState(trainer.config, folder, trainer, None, made_with)


def trained_in(folder, steps: int) -> RunState:
    folder.mkdir(exist_ok=True)
    state = state_in(folder)
    state.begin(overwrite=False, resume=False, weights_from=None)
    for _ in range(steps):
        state.trainer.step()
    state.save(best=False)
    return state


def test_a_run_that_begins_writes_its_configuration_alone(tmp_path):
    state_in(tmp_path, lr=3e-4).begin(overwrite=False, resume=False, weights_from=None)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["lr"] == 3e-4


def test_a_saved_run_goes_on_with_its_weights_and_counters(tmp_path):
    first = trained_in(tmp_path, 2)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"iteration": i}) + "\n" for i in (1, 2, 3)))
    other = state_in(tmp_path)
    other.begin(overwrite=False, resume=True, weights_from=None)
    assert (other.trainer.iteration, other.trainer.episodes) == (2, 12)
    weights = parameters(first.trainer.models.policy)
    assert all(torch.equal(p, weights[name]) for name, p in parameters(other.trainer.models.policy).items())
    assert [json.loads(line)["iteration"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]
    assert not other.trainer.starts_from_reference


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(tmp_path, caplog):
    caplog.set_level("INFO", logger="rlhf_dialog")
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1}\n')
    state = state_in(tmp_path)
    state.begin(overwrite=False, resume=True, weights_from=None)
    assert (state.trainer.iteration, (tmp_path / "metrics.jsonl").read_text()) == (0, "")
    assert "has no checkpoint yet; the run starts from the beginning" in caplog.text


def test_overwrite_removes_what_the_run_replaces(tmp_path):
    trained_in(tmp_path, 1)
    state_in(tmp_path).begin(overwrite=True, resume=False, weights_from=None)
    assert not (tmp_path / "checkpoints").exists()


def test_another_run_is_not_continued(tmp_path):
    trained_in(tmp_path, 1)
    other = state_in(tmp_path)
    other.identity = other.identity | {"model_path": "another"}
    with pytest.raises(UserError, match="model_path"):
        other.begin(overwrite=False, resume=True, weights_from=None)


def test_a_run_with_the_weights_of_another_starts_its_own_count(tmp_path):
    first = trained_in(tmp_path / "old", 2)
    state = state_in(tmp_path / "new")
    (tmp_path / "new").mkdir()
    state.begin(overwrite=False, resume=False, weights_from=tmp_path / "old")
    weights = parameters(first.trainer.models.policy)
    assert all(torch.equal(p, weights[name]) for name, p in parameters(state.trainer.models.policy).items())
    assert state.trainer.iteration == 0
    assert [path.name for path in (tmp_path / "new/checkpoints").glob("iter_*")] == ["iter_000000"]
