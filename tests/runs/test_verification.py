"""A checkpoint is compared with what was written: every file, and a message that says where to go back to."""

import hashlib
import json
import shutil

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.runs import verification
from rlhf_dialog.runs.checkpoint import read_state
from rlhf_dialog.runs.training_state import save_training
from rlhf_dialog.runs.verification import changed_versions, verify, way_back
from tests.parts.trainers import make_trainer

FILES = ["config.yaml", "policy.safetensors", "policy_optimizer.safetensors", "random.safetensors"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of the iterations 1, 2 and 3; nothing in them changes."""
    folder = tmp_path_factory.mktemp("saved")
    trainer = make_trainer(keep_checkpoints=3)
    modules = {"policy": trainer.models.policy}
    if trainer.models.critic is not None:
        modules["critic"] = trainer.models.critic
    for iteration in (1, 2, 3):
        trainer.iteration = iteration
        save_training(folder, trainer.config, trainer.state_dict(), modules, trainer.optimizers)
    return folder


@pytest.fixture
def checkpoints(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoints")


def check(checkpoints, mode="full"):
    """As `--resume` does."""
    verify(*read_state(checkpoints), mode)


def flip(path, position=-9):
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_trainer_json_has_the_hash_and_the_size_of_every_other_file(saved):
    state = json.loads((saved / "iter_000003/trainer.json").read_text())
    there = {path.name: path.read_bytes() for path in (saved / "iter_000003").iterdir() if path.name != "trainer.json"}
    assert set(FILES) <= set(there)
    assert state["files"] == {name: hashlib.sha256(data).hexdigest() for name, data in there.items()}
    assert state["sizes"] == {name: len(data) for name, data in there.items()}


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found(checkpoints, name):
    flip(checkpoints / "iter_000003" / name)
    with pytest.raises(UserError, match=rf"iter_000003: .*{name}.*iter_000002: write its name into .*latest"):
        check(checkpoints)
    check(checkpoints, "sizes")


def test_a_changed_number_in_trainer_json_is_found(checkpoints):
    path = checkpoints / "iter_000003/trainer.json"
    assert path.read_text().count('"episodes": 0') == 1
    path.write_text(path.read_text().replace('"episodes": 0', '"episodes": 1'))
    for mode in ("full", "sizes"):
        with pytest.raises(
            UserError, match=r"trainer.json has changed since it was written .*before it is iter_000002"
        ):
            check(checkpoints, mode)


@pytest.mark.parametrize("mode", ["full", "sizes"])
@pytest.mark.parametrize(("damage", "said"), [("cut", "has 100 bytes, but .* were written"), ("missing", "is missing")])
def test_a_file_that_is_cut_or_missing(checkpoints, mode, damage, said):
    path = checkpoints / "iter_000003/policy.safetensors"
    path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=f"policy.safetensors {said}.*before it is iter_000002"):
        check(checkpoints, mode)


def test_the_way_back_leads_past_damaged_checkpoints(checkpoints):
    (checkpoints / "iter_000003/notes.txt").write_text("the good one")  # a file that somebody added
    for mode in ("full", "sizes"):
        check(checkpoints, mode)
    flip(checkpoints / "iter_000003/policy.safetensors")
    flip(checkpoints / "iter_000002/policy_optimizer.safetensors")
    with pytest.raises(UserError, match="before it is iter_000001"):
        check(checkpoints)
    (checkpoints / "iter_000001/trainer.json").write_text("{")
    with pytest.raises(UserError, match="there is no good checkpoint before it"):
        check(checkpoints)


def test_the_way_back_follows_no_links(checkpoints, tmp_path):
    (checkpoints / "iter_000002/policy.safetensors").rename(tmp_path / "elsewhere")
    (checkpoints / "iter_000002/policy.safetensors").symlink_to(tmp_path / "elsewhere")
    assert "before it is iter_000001" in way_back(checkpoints / "iter_000003")


@pytest.mark.parametrize("poison", [{"files": 3}, {"files": {"policy.safetensors": 7}}, {"sizes": [1]}])
def test_records_that_make_no_sense_are_damage(checkpoints, poison):
    path = checkpoints / "iter_000003/trainer.json"
    state = json.loads(path.read_text()) | poison
    del state["sha256"]
    path.write_text(json.dumps(state))
    with pytest.raises(UserError, match="iter_000003: is damaged: "):
        check(checkpoints)


def test_a_checkpoint_of_an_older_version_passes(checkpoints):
    path = checkpoints / "iter_000003/trainer.json"
    state = json.loads(path.read_text())
    for key in ("sha256", "files", "sizes", "versions"):
        del state[key]
    path.write_text(json.dumps(state))
    flip(checkpoints / "iter_000003/policy.safetensors")
    check(checkpoints)
    assert changed_versions(state) == ""


def test_other_versions_are_listed(monkeypatch):
    monkeypatch.setattr(verification.metadata, "version", lambda name: {"torch": "2.6.0"}.get(name, "5.1"))
    assert changed_versions({"versions": {"torch": "2.5.1", "transformers": "5.1"}}) == "torch 2.5.1 -> 2.6.0"
    assert changed_versions({"versions": {"torch": "2.6.0"}}) == ""
