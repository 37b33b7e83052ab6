"""Checkpoints: what is written and kept, what is refused, and what is damaged."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from rlhf_dialog.config.loading import load_config
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs import checkpoint, verification
from rlhf_dialog.runs.checkpoint import newest_checkpoint, read_state
from rlhf_dialog.runs.training_state import load_training, save_training
from rlhf_dialog.runs.verification import changed_versions, verify, way_back
from tests.parts.saving import build, resume, save
from tests.parts.trainers import make_trainer

# -- of a trainer


@pytest.mark.slow
def test_files_of_a_checkpoint_and_those_of_another_kind_of_run(tmp_path):
    trainer = build("separate critic")
    trainer.step()
    assert save(trainer, tmp_path / "checkpoints") == tmp_path / "checkpoints/iter_000001"
    found = {str(path.relative_to(tmp_path / "checkpoints")) for path in tmp_path.rglob("*") if path.is_file()}
    names = ["config.yaml", "trainer.json", "random.safetensors"]
    names += [f"{m}{kind}.safetensors" for m in ("policy", "critic") for kind in ("", "_optimizer")]
    assert found == {"latest", *(f"iter_000001/{name}" for name in names)}
    path = tmp_path / "checkpoints/iter_000001/config.yaml"
    assert load_config(path).model_dump() == {**trainer.config.model_dump(), "experiment_name": "config"}
    assert yaml.safe_load(path.read_text())["lr"] == 3e-3
    with pytest.raises(UserError, match=r"has optimizers of \['critic', 'policy'\], but this run has \['policy'\]"):
        resume("shared trunk", tmp_path / "checkpoints")
    save(build("without critic"), tmp_path)
    with pytest.raises(UserError, match="does not fit this run"):
        resume("shared trunk", tmp_path)  # no value head in it


# -- the folder alone


def state_of(iteration, best):
    return {"iteration": iteration, "validation": {"best": {"iteration": best}}}


def write(folder, iteration, best=-1, **state):
    """A checkpoint without tensors; two are kept."""
    return checkpoint.save_checkpoint(folder, state_of(iteration, best) | state, lambda _: {"x": 1}, 2)


def names_in(folder):
    return sorted(path.name.removeprefix("iter_0000") for path in folder.iterdir())


def test_the_newest_the_best_those_of_the_guard_and_later_ones_are_kept(tmp_path):
    for iteration in (1, 2, 4, 10):
        write(tmp_path, iteration, min(iteration, 2))
    assert names_in(tmp_path) == ["02", "04", "10", "latest"]
    (tmp_path / "iter_000020").mkdir()
    write(tmp_path, 12, 2, guard={"protected": [5]})  # the newest up to 5 is 4
    assert names_in(tmp_path) == ["02", "04", "10", "12", "20", "latest"]
    write(tmp_path, 13, 2)
    assert names_in(tmp_path) == ["02", "12", "13", "20", "latest"]
    write(tmp_path, 14)  # of another metric, by which none is the best yet
    assert names_in(tmp_path) == ["13", "14", "20", "latest"]


def test_a_kill_before_the_pointer_is_made_good_unless_it_has_changed_since(tmp_path):
    write(tmp_path, 1)
    second = write(tmp_path, 2)
    for latest, before, wanted in (("iter_000001", "iter_000001", "iter_000002"), ("iter_000001", "", "iter_000001")):
        (tmp_path / "latest").write_text(latest)
        (second / checkpoint.UNANNOUNCED).write_text(before)
        checkpoint.finish_saving(tmp_path)
        assert newest_checkpoint(tmp_path) == tmp_path / wanted
        assert not (second / checkpoint.UNANNOUNCED).exists()
    (tmp_path / "latest").unlink()
    assert newest_checkpoint(tmp_path) == second
    assert checkpoint.newest_up_to(tmp_path, 1) == tmp_path / "iter_000001"


def test_a_pointer_that_leaves_the_folder_is_refused(tmp_path):
    write(tmp_path, 1, 1)
    for text in ("../elsewhere", "iter_000001/..", "", "iter_000001\n../x", "\0"):
        (tmp_path / "latest").write_text(text)
        with pytest.raises(UserError, match=r"latest: names .*not a checkpoint of this folder"):
            newest_checkpoint(tmp_path)
    (tmp_path / "latest").unlink()
    os.mkfifo(tmp_path / "latest")
    with pytest.raises(UserError, match="latest: is a pipe"):
        newest_checkpoint(tmp_path)


def test_a_checkpoint_or_pointer_of_links_is_refused(tmp_path):
    saved = write(tmp_path / "checkpoints", 1)
    for path in (saved, saved / "trainer.json", tmp_path / "checkpoints/latest"):
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(UserError, match=r"is a link out of"):
            checkpoint.read_state(tmp_path / "checkpoints")
        path.unlink()
        (tmp_path / "elsewhere").rename(path)


@pytest.mark.parametrize("state", ["[]", "{}", '{"format_version": 1}', "null", "{"])
def test_a_state_that_is_none_is_the_users_error(tmp_path, state):
    (write(tmp_path, 1) / "trainer.json").write_text(state)
    with pytest.raises(UserError, match="iter_000001: is damaged"):
        checkpoint.read_state(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [({"format_version": 2}, "format version 2"), ({"iteration": 4}, "rename"), ({"iteration": "1"}, "")],
)
def test_a_state_of_another_format_or_iteration(tmp_path, change, said):
    path = write(tmp_path, 1) / "trainer.json"
    state = json.loads(path.read_text())
    assert checkpoint.read_state(tmp_path) == (tmp_path / "iter_000001", state)
    assert (state["format_version"], state["x"]) == (1, 1)
    path.write_text(json.dumps(state | change))
    with pytest.raises(UserError, match=f"iter_000001.*{said}"):
        checkpoint.read_state(tmp_path)


FILES = ["config.yaml", "policy.safetensors", "policy_optimizer.safetensors", "random.safetensors"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    trainer = make_trainer(keep_checkpoints=3)
    for iteration in (1, 2, 3):
        trainer.iteration = iteration
        save_training(
            folder, trainer.config, trainer.state_dict(), {"policy": trainer.models.policy}, trainer.optimizers
        )
    return folder


@pytest.fixture
def checkpoints(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoints")


def check(checkpoints, mode="full"):
    verify(*read_state(checkpoints), mode)


def flip(path, position=-9):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_trainer_json_has_the_hash_and_the_size_of_every_other_file(saved):
    state = json.loads((saved / "iter_000003/trainer.json").read_text())
    there = {path.name: path.read_bytes() for path in (saved / "iter_000003").iterdir() if path.name != "trainer.json"}
    assert set(FILES) <= set(there)
    assert state["files"] == {name: hashlib.sha256(data).hexdigest() for name, data in there.items()}
    assert state["sizes"] == {name: len(data) for name, data in there.items()}


def test_a_flipped_bit_is_found_and_the_checkpoint_before_it_is_named(checkpoints):
    flip(checkpoints / "iter_000003/policy.safetensors")
    (checkpoints / "iter_000003/notes.txt").write_text("the good one")  # a file that somebody added
    with pytest.raises(UserError, match=r"iter_000003: .*policy\.s.*iter_000002: write its name into .*latest"):
        check(checkpoints)
    check(checkpoints, "sizes")
    assert "it is iter_000001: use it with --checkpoint iter_000001" in way_back(
        checkpoints / "iter_000002", "--checkpoint"
    )
    assert "no checkpoint before it" in way_back(checkpoints / "iter_000001")


def cut(path):
    path.write_bytes(path.read_bytes()[:100])


def change(path):
    state = path.with_name("trainer.json")
    assert state.read_text().count('"episodes": 0') == 1
    state.write_text(state.read_text().replace('"episodes": 0', '"episodes": 1'))


@pytest.mark.parametrize("mode", ["full", "sizes"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "policy.safetensors has 100 bytes, but .* were written"),
        (Path.unlink, "policy.safetensors is missing"),
        (change, "trainer.json has changed since it was written"),
    ],
)
def test_a_file_that_is_cut_or_missing_and_a_changed_number(checkpoints, mode, damage, said):
    damage(checkpoints / "iter_000003/policy.safetensors")
    with pytest.raises(UserError, match=f"{said}.*before it is iter_000002"):
        check(checkpoints, mode)


def test_a_file_that_cannot_be_loaded_is_the_users_error(checkpoints):
    trainer = make_trainer()
    modules = {"policy": trainer.models.policy}
    for name in ("policy.safetensors", "policy_optimizer.safetensors", "random.safetensors"):
        path, whole = checkpoints / "iter_000003" / name, (checkpoints / "iter_000003" / name).read_bytes()
        for damage in (lambda path=path, whole=whole: path.write_bytes(whole[:-20]), path.unlink):
            damage()
            with pytest.raises(UserError, match="iter_000003: is damaged"):
                load_training(checkpoints, modules, trainer.optimizers, World())
        path.write_bytes(whole)


def test_other_versions_are_listed(monkeypatch):
    monkeypatch.setattr(verification.metadata, "version", lambda name: {"torch": "2.6.0"}.get(name, "5.1"))
    assert changed_versions({"versions": {"torch": "2.5.1", "transformers": "5.1"}}) == "torch 2.5.1 -> 2.6.0"
    assert changed_versions({"versions": {"torch": "2.6.0"}}) == ""
