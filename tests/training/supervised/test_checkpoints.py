"""A supervised training that was killed goes on to the model that an undisturbed one has, bit for bit."""

import json
import os
import pickle
import shutil

import pytest
from safetensors.torch import load_file

from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.commands.supervised import intent_classifier, relevance_model, sft
from rlhf_dialog.training.supervised.checkpoints import COMPLETE, SaveTimer
from tests.parts import tiny

pytestmark = pytest.mark.thorough

COMMON = ("--device", "cpu", "--pytorch_threads", "1", "--max_steps", "8", "--batch_size", "4", "--vocab_size", "300")
SMALL = ("--hidden_size", "8")
STAGES = {
    "sft": (
        sft,
        ("--n_layer", "1", "--n_embd", "16", "--n_head", "2", "--dropout", "0.3", "--evals", "4", "--patience", "3"),
    ),
    "intent": (intent_classifier, (*SMALL, "--num_layers", "1", "--num_heads", "2")),
    "relevance": (relevance_model, (*SMALL, "--members", "2", "--salad_weight", "2", "--bank_size", "5")),
    "cross-encoder": (
        relevance_model,
        (*SMALL, "--members", "1", "--architecture", "cross_encoder", "--num_layers", "1"),
    ),
}
SPOILED = {
    "pickle": lambda data: pickle.dumps(os.getcwd),
    "truncated": lambda data: data[: len(data) // 2],
    "flipped": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    "empty": lambda data: b"",
}
CHECKPOINTS = {
    "sft": 3,
    "intent": 5,
    "relevance": 11,
    "cross-encoder": 4,
}  # of one a step, before the training is stopped


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(tiny.write_data(tmp_path_factory.mktemp("data"), 20))


@pytest.fixture
def stopped_after(monkeypatch):
    """`with stopped_after(3):` a checkpoint at each step, and Ctrl-C after the third."""

    def stopped(count):
        written = []

        def done(self):
            written.append(self)
            if len(written) == count:
                raise KeyboardInterrupt

        patch = monkeypatch.context()
        patched = patch.__enter__()
        patched.setattr(SaveTimer, "now", lambda self: True)
        patched.setattr(SaveTimer, "done", done)
        return patch

    return stopped


def trained(stage, data, output, *words):
    command, own = STAGES[stage]
    return command.main(["--data_path", data, "--output", str(output), *COMMON, *own, *words])


def unfinished(output):
    return output.parent / f".{output.name}.unfinished"


@pytest.mark.parametrize("stage", STAGES)
def test_it_goes_on_to_the_same_model(stage, data, tmp_path, stopped_after, capsys, caplog):
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert trained(stage, data, whole) == 0
    patch = stopped_after(CHECKPOINTS[stage])
    assert trained(stage, data, part) == 130
    patch.__exit__(None, None, None)
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


@pytest.mark.parametrize("stage", ["sft", "relevance"])
@pytest.mark.parametrize("words", [("--learning_rate", "3e-3"), ("--resume", "never")])
def test_other_settings_begin_again(stage, words, data, tmp_path, stopped_after, caplog):
    output = tmp_path / "out"
    patch = stopped_after(2)
    assert trained(stage, data, output) == 130
    patch.__exit__(None, None, None)
    assert trained(stage, data, output, *words) == 0
    assert "goes on" not in caplog.text
    assert ("is of a training with other settings" in caplog.text) == (words[0] == "--learning_rate")
    assert not unfinished(output).exists()


def test_a_checkpoint_that_is_not_complete_is_not_gone_on_from(data, tmp_path, stopped_after, caplog):
    """As a kill leaves it while the library writes: files, and no mark."""
    output = tmp_path / "out"
    patch = stopped_after(3)
    assert trained("sft", data, output) == 130
    patch.__exit__(None, None, None)
    (whole,) = unfinished(output).glob("checkpoint-*")
    broken = whole.with_name("checkpoint-7")
    broken.mkdir()
    (broken / "model.safetensors").write_bytes(b"half")
    assert trained("sft", data, output) == 0
    assert "goes on after step 3" in caplog.text


FILES = {
    "sft": ("rng_state.pth", "scheduler.pt", "optimizer.pt", "model.safetensors", "trainer_state.json", "config.json"),
    "relevance": ("checkpoint-members.pt",),
}


@pytest.mark.parametrize("stage", FILES)
def test_a_damaged_checkpoint_is_refused_in_one_sentence(stage, data, tmp_path, stopped_after, capsys, caplog):
    """Each file in each way: a whole one is gone on from where there is one, and `resume: never` begins again."""
    output = tmp_path / "out"
    patch = stopped_after(3)
    assert trained(stage, data, output) == 130
    patch.__exit__(None, None, None)
    shutil.copytree(unfinished(output), tmp_path / "kept")
    where = unfinished(output)
    folder = where / "checkpoint-3" if stage == "sft" else where
    for name in FILES[stage]:
        for way, spoil in SPOILED.items():
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
