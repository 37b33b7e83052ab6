"""A supervised training that was killed goes on to the model that an undisturbed one has, bit for bit."""

import json
import os
import pickle
import shutil
import subprocess

import pytest
from safetensors.torch import load_file

from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.commands.supervised import train_intent_classifier, train_relevance_model, train_sft
from rlhf_dialog.training.supervised.checkpoints import COMPLETE, SaveTimer, compute_seal
from rlhf_dialog.training.supervised.intent_classifier import IntentClassifier
from rlhf_dialog.training.supervised.relevance.model import RelevanceTraining
from rlhf_dialog.training.supervised.sft import SFT
from tests.parts import disks, tiny

pytestmark = pytest.mark.slow

COMMON = ("--device", "cpu", "--pytorch_threads", "1", "--max_steps", "8", "--batch_size", "4", "--vocab_size", "300")
SMALL = ("--hidden_size", "8")
STAGES = {
    "sft": (
        train_sft,
        ("--n_layer", "1", "--n_embd", "16", "--n_head", "2", "--dropout", "0.3", "--evals", "4", "--patience", "3"),
    ),
    "intent": (train_intent_classifier, (*SMALL, "--num_layers", "1", "--num_heads", "2")),
    "relevance": (train_relevance_model, (*SMALL, "--members", "2", "--salad_weight", "2", "--bank_size", "5")),
}
KINDS = {"sft": SFT, "intent": IntentClassifier, "relevance": RelevanceTraining}
SPOILED = {
    "pickle": lambda data: pickle.dumps(os.getcwd),
    "truncated": lambda data: data[: len(data) // 2],
    "flipped": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    "empty": lambda data: b"",
}
CHECKPOINTS = {"sft": 3, "intent": 5, "relevance": 11}  # one a step, before the training is stopped
LAST = {"sft": 7, "intent": 7, "relevance": 8}  # step of the last checkpoint


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(tiny.write_data(tmp_path_factory.mktemp("data"), 20))


def trained(stage, data, output, *words):
    command, own = STAGES[stage]
    return command(["--data_path", data, "--output", str(output), *COMMON, *own, *words])


def stopped(monkeypatch, count, stage, data, output):
    """Trained with a checkpoint at each step, to Ctrl-C after this many."""
    written = []

    def done(self):
        written.append(self)
        if len(written) == count:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SaveTimer, "now", lambda self: True)
        patch.setattr(SaveTimer, "done", done)
        assert trained(stage, data, output) == 130


def unfinished(output):
    return output.parent / f".{output.name}.unfinished"


@pytest.mark.parametrize("stage", STAGES)
def test_it_goes_on_to_the_same_model(stage, data, tmp_path, monkeypatch, capsys, caplog):
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert trained(stage, data, whole) == 0
    stopped(monkeypatch, CHECKPOINTS[stage], stage, data, part)
    assert not part.exists()
    assert unfinished(part).is_dir()
    assert trained(stage, data, part) == 0
    step = 3 if stage == "relevance" else CHECKPOINTS[stage]
    assert f"after step {step}, from " in caplog.text
    first, second = (load_file(folder / "model.safetensors") for folder in (whole, part))
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)
    report = "training.json" if stage == "sft" else "report.json"
    reports = [json.loads((folder / report).read_text(encoding="utf-8")) for folder in (whole, part)]
    clock = ("seconds", "settings", "config")
    kept = [{name: value for name, value in one.items() if name not in clock} for one in reports]
    assert kept[0] == kept[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part", "whole"]


@pytest.mark.parametrize(
    ("stage", "words"), [("sft", ("--learning_rate", "3e-3")), ("relevance", ("--resume", "never"))]
)
def test_other_settings_begin_again(stage, words, data, tmp_path, monkeypatch, caplog):
    output = tmp_path / "out"
    stopped(monkeypatch, 2, stage, data, output)
    assert trained(stage, data, output, *words) == 0
    assert "goes on" not in caplog.text
    assert ("is of a training with other settings" in caplog.text) == (words[0] == "--learning_rate")
    assert not unfinished(output).exists()


FILES = {
    "sft": ("rng_state.pth", "scheduler.pt", "optimizer.pt", "model.safetensors", "trainer_state.json", "config.json"),
    "relevance": ("checkpoint-members.pt",),
}


@pytest.mark.parametrize("stage", FILES)
def test_a_damaged_checkpoint_is_refused_in_one_sentence(stage, data, tmp_path, monkeypatch, capsys, caplog):
    """Each file in each way: a whole one is gone on from where there is one, and `resume: never` begins again."""
    output = tmp_path / "out"
    stopped(monkeypatch, 3, stage, data, output)
    shutil.copytree(unfinished(output), tmp_path / "kept")
    where = unfinished(output)
    folder = where / "checkpoint-3" if stage == "sft" else where
    for name in FILES[stage]:
        for way, spoil in list(SPOILED.items())[:: 1 if stage == "relevance" else 2]:
            (folder / name).write_bytes(spoil((folder / name).read_bytes()))
            capsys.readouterr()
            assert trained(stage, data, output) == 2, (name, way)
            last = capsys.readouterr().err.splitlines()[-1]
            place = folder / name if stage == "relevance" else folder
            assert last.startswith(f"error: {place}: is damaged: "), (name, way)
            assert last.endswith("; begin again with --resume never"), (name, way)
            assert not output.exists()
            shutil.copy(tmp_path / "kept" / (folder / name).relative_to(where), folder / name)
    if stage == "sft":
        shutil.copytree(folder, where / "checkpoint-4")  # it says that it is the newest
        write_json(where / "checkpoint-4" / COMPLETE, json.loads((folder / COMPLETE).read_text()) | {"step": 4})
        assert trained(stage, data, output) == 0
        assert f"{where / 'checkpoint-4'}: is damaged" in caplog.text
        assert "goes on after step 3, from" in caplog.text
    else:
        (folder / name).write_bytes(b"")
        assert trained(stage, data, output, "--resume", "never") == 0
        assert "goes on" not in caplog.text


@pytest.mark.parametrize(("stage", "place"), [("sft", "save"), ("intent", "measure"), ("relevance", "measure")])
def test_what_ends_behind_the_training_goes_on_from_the_last_checkpoint(
    stage, place, data, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(SaveTimer, "now", lambda self: True)
    with monkeypatch.context() as patched:
        patched.setattr(KINDS[stage], place, interrupted)
        assert trained(stage, data, tmp_path / "out") == 130
    assert trained(stage, data, tmp_path / "out") == 0
    assert f"after step {LAST[stage]}, from " in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def interrupted(*_):
    raise KeyboardInterrupt


def test_the_same_command_again_ends_with_0_and_changes_nothing(tmp_path, capsys):
    """Also where a kill left the checkpoints; other data, settings or `resume: never` are refused as before."""
    data, output = tiny.write_data(tmp_path / "data", 20), tmp_path / "out"
    assert trained("sft", str(data), output) == 0
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    unfinished(output).mkdir()
    (unfinished(output) / "checkpoint-7").mkdir()
    capsys.readouterr()
    assert trained("sft", str(data), output, "--checkpoint_minutes", "9") == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1
    assert str(output) in said[0]
    assert not unfinished(output).exists()
    assert trained("sft", str(data), output, "--resume", "never") == 2
    assert trained("sft", str(data), output, "--learning_rate", "1e-3") == 2
    text = data / "train" / "dialogues_train.txt"
    text.write_text(text.read_text().replace("the", "thy", 1))
    assert trained("sft", str(data), output) == 2
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(("stage", "size"), [("sft", 380), ("relevance", 32)])
def test_a_full_disk_is_one_sentence_and_costs_no_finished_checkpoint(
    stage, size, data, tmp_path, monkeypatch, capsys, caplog
):
    """In the first checkpoint or a later one."""
    monkeypatch.setattr(SaveTimer, "now", lambda self: True)
    with disks.small_disk(tmp_path / "disk", f"{size}k") as disk:
        assert trained(stage, data, disk / "out") == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert all(word in last for word in ("error: ", str(disk), "cannot be written")), last
        finished = [*unfinished(disk / "out").glob(f"*/{COMPLETE}"), *unfinished(disk / "out").glob("*.pt")]
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        assert trained(stage, data, disk / "out") == 0
        assert ("goes on" in caplog.text) == bool(finished)
        assert [path.name for path in disk.iterdir()] == ["out"]


def test_a_damaged_file_under_a_seal_of_its_own_is_refused_in_one_sentence(data, tmp_path, monkeypatch, capsys):
    """As of a program that sealed what it had read badly."""
    output = tmp_path / "out"
    stopped(monkeypatch, 3, "sft", data, output)
    folder = unfinished(output) / "checkpoint-3"
    mark = json.loads((folder / COMPLETE).read_text())
    for number, name in enumerate(FILES["sft"]):
        whole = (folder / name).read_bytes()
        way = ("pickle", "truncated", "empty")[number % 3]
        (folder / name).write_bytes(SPOILED[way](whole))
        write_json(folder / COMPLETE, mark | {"seal": compute_seal(folder, mark)})
        assert trained("sft", data, output) == 2, (name, way)
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith(f"error: {folder}: is damaged: "), last
        (folder / name).write_bytes(whole)


def test_a_short_training_writes_none(data, tmp_path, monkeypatch):
    monkeypatch.setattr(SaveTimer, "done", lambda self: pytest.fail("a checkpoint"))
    assert trained("sft", data, tmp_path / "out") == 0


def test_it_is_time_every_few_minutes():
    now = [100.0]
    due = SaveTimer(5, clock=lambda: now[0])
    assert not due.now()
    now[0] = 400.0
    assert due.now()
    due.done()
    assert not due.now()
