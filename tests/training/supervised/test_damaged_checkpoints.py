"""A byte that has changed in a checkpoint of a supervised training is noticed, or changes nothing that is read."""

import json
import random
import shutil
from types import SimpleNamespace

import pytest
import torch

from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.errors import UserError
from rlhf_dialog.training.supervised.checkpoints import COMPLETE, Checkpoints, SaveTimer, compute_seal, fingerprint_of
from rlhf_dialog.training.supervised.relevance.model import MembersCheckpoint, RelevanceProgress
from rlhf_dialog.training.supervised.settings import PreferenceConfig
from tests.parts.damage import cut, flip


@pytest.fixture
def checkpoints(tmp_path):
    """Those of a training whose library has written two files at step 9."""
    made = Checkpoints(SimpleNamespace(checkpoint_minutes=1), tmp_path, "this training")
    (tmp_path / "checkpoint-9").mkdir()
    for name in ("model.safetensors", "optimizer.pt"):
        (tmp_path / "checkpoint-9" / name).write_bytes(random.Random(name).randbytes(200))
    made.on_save(None, SimpleNamespace(global_step=9), None)
    return made


@pytest.mark.parametrize("seed", range(6))
def test_a_changed_file_of_the_librarys_trainer(checkpoints, seed):
    folder = checkpoints.newest()
    assert folder == checkpoints.folder / "checkpoint-9"
    path = folder / ("model.safetensors", "optimizer.pt")[seed % 2]
    whole = path.read_bytes()
    path.write_bytes((flip, cut)[seed % 3 == 0](whole, random.Random(seed)))
    assert path.read_bytes() != whole
    with pytest.raises(UserError, match=r"checkpoint-9: is damaged: .*; begin again with --resume never"):
        checkpoints.newest()


def test_a_missing_file_a_further_one_and_a_changed_mark(checkpoints):
    folder = checkpoints.folder / "checkpoint-9"
    for change in (
        lambda: (folder / "optimizer.pt").unlink(),
        lambda: (folder / "scheduler.pt").touch(),
        lambda: (folder / COMPLETE).write_text((folder / COMPLETE).read_text().replace('"step": 9', '"step": 8')),
    ):
        shutil.copytree(folder, folder.with_name("kept"))
        change()
        with pytest.raises(UserError, match="checkpoint-9: is damaged"):
            checkpoints.newest()
        shutil.rmtree(folder)
        folder.with_name("kept").rename(folder)
    assert checkpoints.newest() == folder


def test_a_mark_without_a_seal_with_a_strangers_and_of_a_stranger(checkpoints):
    folder = checkpoints.folder / "checkpoint-9"
    whole = json.loads((folder / COMPLETE).read_text())
    unsealed = {name: value for name, value in whole.items() if name != "seal"}
    emptied = {"identity": "this training"}
    for mark in (
        unsealed,
        whole | {"seal": "0" * 64},
        whole | {"seal": None},
        whole | {"identity": "that training"},
        {},
        emptied | {"seal": compute_seal(folder, emptied)},
    ):
        write_json(folder / COMPLETE, mark)
        with pytest.raises(UserError, match=r"is damaged: .*; begin again with --resume never"):
            checkpoints.newest()
    stranger = unsealed | {"identity": "that training"}
    write_json(folder / COMPLETE, stranger | {"seal": compute_seal(folder, stranger)})
    assert checkpoints.newest() is None


def test_a_fingerprint_is_of_settings_versions_and_the_content_of_data_and_models(tmp_path):
    """A separator is no path, wherever the program stands."""
    data, model = tmp_path / "data.jsonl", tmp_path / "model"
    data.write_text("a")
    model.mkdir()
    (model / "weights").write_text("b")

    def fingerprint(version="1", **keys):
        given = {"data_path": str(data), "output": "o", "model_path": str(model)}
        return fingerprint_of(PreferenceConfig(**given | {"turn_separator": "/"} | keys), {"torch": version})

    first = fingerprint()
    assert first == fingerprint(output="p", resume="never", checkpoint_minutes=9)
    seen = {first, fingerprint("2"), fingerprint(seed=2), fingerprint(turn_separator=".")}
    (model / "weights").write_text("c")
    seen.add(fingerprint())
    data.write_text("d")
    assert len({*seen, fingerprint()}) == 6


def test_what_a_kill_left_half_written_is_removed(checkpoints, caplog):
    half = checkpoints.folder / "checkpoint-12"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert checkpoints.newest() == checkpoints.folder / "checkpoint-9"
    assert not half.exists()
    assert "checkpoint-12" in caplog.text


def test_an_older_whole_one_is_taken(checkpoints, caplog):
    older = shutil.copytree(checkpoints.folder / "checkpoint-9", checkpoints.folder.parent / "checkpoint-9")
    newer = (checkpoints.folder / "checkpoint-9").rename(checkpoints.folder / "checkpoint-12")
    checkpoints.on_save(None, SimpleNamespace(global_step=12), None)
    shutil.move(older, checkpoints.folder)
    assert checkpoints.newest() == newer
    (newer / "model.safetensors").write_bytes(b"")
    assert checkpoints.newest() == checkpoints.folder / "checkpoint-9"
    assert f"{newer}: is damaged" in caplog.text


def test_a_changed_file_of_a_relevance_models_training(tmp_path):
    def parts(seed):
        torch.manual_seed(seed)
        return MembersCheckpoint(torch.nn.Linear(3, 3), tmp_path, "this training", SaveTimer(1))

    saved, state = parts(0), torch.get_rng_state()
    saved.save(RelevanceProgress(1, 5, torch.arange(7), {"state": {}}, {"last_epoch": 5}, state))
    whole, said = saved.path.read_bytes(), []
    for seed in range(20):
        saved.path.write_bytes((flip, cut)[seed % 4 == 0](whole, random.Random(seed)))
        read = parts(1)
        try:
            progress = read.restore()
        except UserError as error:
            said.append(str(error))
            continue
        assert (progress.member, progress.step, progress.order.tolist()) == (1, 5, [*range(7)])
        assert read.model.weight.equal(saved.model.weight)
        assert progress.random.equal(state)
    assert len(said) >= 15
    assert all(text.startswith(f"{saved.path}: is damaged: ") for text in said)
    assert all(text.endswith("; begin again with --resume never") for text in said)
