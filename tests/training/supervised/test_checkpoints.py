"""Which checkpoint a supervised training goes on from; damage is refused."""

import json
import os
import pickle
import shutil
from types import SimpleNamespace

import pytest
import torch

from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.commands.supervised import train_sft
from rlhf_dialog.errors import UserError
from rlhf_dialog.training.supervised.checkpoints import (
    COMPLETE,
    Checkpoints,
    checkpoint_folder,
    compute_seal,
    fingerprint_of,
)
from rlhf_dialog.training.supervised.relevance import model as relevance
from rlhf_dialog.training.supervised.settings import PreferenceConfig
from tests.parts import tiny

SPOILED = {
    "pickle": lambda data: pickle.dumps(os.getcwd),
    "truncated": lambda data: data[: len(data) // 2],
    "flipped": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    "empty": lambda data: b"",
}


# the checkpoints of the library's trainer


@pytest.fixture
def checkpoints(tmp_path):
    """Those of a training whose library has written two files at step 9."""
    made = Checkpoints(SimpleNamespace(checkpoint_minutes=1), tmp_path, "this training")
    (tmp_path / "checkpoint-9").mkdir()
    for name in ("model.safetensors", "optimizer.pt"):
        (tmp_path / "checkpoint-9" / name).write_bytes(name.encode() * 20)
    made.on_save(None, SimpleNamespace(global_step=9), None)
    return made


def test_one_is_asked_for_every_few_minutes_before_the_last_step(checkpoints, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    due = Checkpoints(SimpleNamespace(checkpoint_minutes=5), checkpoints.folder, "this training")

    def is_asked(step=8, has_ended=False):
        control = SimpleNamespace(should_save=False, should_training_stop=has_ended)
        due.on_step_end(None, SimpleNamespace(global_step=step, max_steps=9), control)
        return control.should_save

    assert not is_asked()
    now[0] = 400.0
    assert [is_asked(), is_asked(9), is_asked(8, True)] == [True, False, False]
    due.on_save(None, SimpleNamespace(global_step=9), None)
    assert not is_asked()


def test_a_change_of_a_file_or_of_the_mark_is_damage(checkpoints):
    folder = checkpoints.newest()
    assert folder == checkpoints.folder / "checkpoint-9"
    whole = json.loads((folder / COMPLETE).read_text())
    changes = [
        lambda way=way: (folder / "optimizer.pt").write_bytes(way(b"optimizer.pt" * 20)) for way in SPOILED.values()
    ]
    changes += [lambda: (folder / "optimizer.pt").unlink(), lambda: (folder / "scheduler.pt").touch()]
    for mark in ({"seal": None}, {"seal": "0" * 64}, {"identity": "that training"}, {"step": 8}):
        changes.append(lambda mark=mark: write_json(folder / COMPLETE, whole | mark))
    for change in changes:
        shutil.copytree(folder, folder.with_name("kept"))
        change()
        with pytest.raises(UserError, match=r"checkpoint-9: is damaged: .*; begin again with --resume never"):
            checkpoints.newest()
        shutil.rmtree(folder)
        folder.with_name("kept").rename(folder)
    stranger = {"identity": "that training", "step": 9}
    write_json(folder / COMPLETE, stranger | {"seal": compute_seal(folder, *stranger.values())})
    assert checkpoints.newest() is None


def test_the_newest_whole_one_is_taken_and_half_written_ones_are_removed(checkpoints, caplog):
    older = shutil.copytree(checkpoints.folder / "checkpoint-9", checkpoints.folder.parent / "checkpoint-9")
    newer = (checkpoints.folder / "checkpoint-9").rename(checkpoints.folder / "checkpoint-12")
    checkpoints.on_save(None, SimpleNamespace(global_step=12), None)
    shutil.move(older, checkpoints.folder)
    (checkpoints.folder / "checkpoint-15").mkdir()
    assert checkpoints.newest() == newer
    assert not (checkpoints.folder / "checkpoint-15").exists()
    (newer / "model.safetensors").write_bytes(b"")
    assert checkpoints.newest() == checkpoints.folder / "checkpoint-9"
    assert "checkpoint-15: was not written to its end" in caplog.text
    assert f"{newer}: is damaged" in caplog.text
    checkpoints.on_save(None, SimpleNamespace(global_step=12), None)
    assert [path.name for path in checkpoints.folder.iterdir()] == ["checkpoint-12"]  # the others are removed


def test_to_begin_again_removes_the_checkpoints(tmp_path):
    (tmp_path / ".out.unfinished" / "checkpoint-9").mkdir(parents=True)
    (tmp_path / ".out.unfinished" / "checkpoint-members.pt").touch()
    folder = checkpoint_folder(SimpleNamespace(output=tmp_path / "out", resume="auto"))
    assert len(list(folder.iterdir())) == 2
    assert checkpoint_folder(SimpleNamespace(output=tmp_path / "out", resume="never")) == folder
    assert not any(folder.iterdir())


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


def test_the_members_of_a_relevance_model_come_back_to_the_same_training_alone(tmp_path, caplog):
    path, saved = tmp_path / "checkpoint-members.pt", torch.nn.Linear(3, 3)
    assert relevance.restore_members(saved, path, "a") == 0
    torch.save({"identity": "a", "model": saved.state_dict(), "num_trained": 2}, path)
    fresh = torch.nn.Linear(3, 3)
    assert relevance.restore_members(fresh, path, "b") == 0
    assert "is of a training with other settings" in caplog.text
    assert not fresh.weight.equal(saved.weight)
    assert relevance.restore_members(fresh, path, "a") == 2
    assert fresh.weight.equal(saved.weight)
    whole, number = path.read_bytes(), saved.weight[0, :1].detach().numpy().tobytes()
    for changed in (pickle.dumps(os.getcwd), whole[: len(whole) // 2], whole.replace(number, b"abcd"), b""):
        path.write_bytes(changed)
        with pytest.raises(UserError, match=r"members\.pt: is damaged: .*; begin again with --resume never"):
            relevance.restore_members(fresh, path, "a")


# whole trainings; tests/whole_runs/test_same_numbers.py kills them


def trained(data, output, *words):
    sizes = ["--n_layer", "1", "--n_embd", "16", "--n_head", "2", "--vocab_size", "300", "--evals", "1"]
    few = ["--max_steps", "4", "--batch_size", "4", "--device", "cpu", "--pytorch_threads", "1"]
    return train_sft(["--data_path", str(data), "--output", str(output), *sizes, *few, *words])


@pytest.mark.slow
def test_the_same_command_again_ends_with_0_and_changes_nothing(tmp_path, capsys):
    """Also where a kill left the checkpoints; other data, settings or `resume: never` are refused as before."""
    data, output = tiny.write_data(tmp_path / "data", 20), tmp_path / "out"
    unfinished = tmp_path / ".out.unfinished"
    assert trained(data, output) == 0
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    (unfinished / "checkpoint-7").mkdir(parents=True)
    capsys.readouterr()
    assert trained(data, output, "--checkpoint_minutes", "9") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert str(output) in line
    assert not unfinished.exists()
    assert trained(data, output, "--resume", "never") == 2
    assert trained(data, output, "--learning_rate", "1e-3") == 2
    text = data / "train" / "dialogues_train.txt"
    text.write_text(text.read_text().replace("the", "thy", 1))
    assert trained(data, output) == 2
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before
    assert "is not empty" in capsys.readouterr().err
