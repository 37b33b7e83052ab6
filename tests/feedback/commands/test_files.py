"""`feedback export | import | backup`."""

import json
from pathlib import Path

import pytest

from rlhf_dialog.feedback.commands import feedback
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.store import Store


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    for name in ("config.json", "model.safetensors"):
        Path("model", name).write_text(name)
    Bot.create("bot", "model")
    row = {"prompt": "Is it far ?", "completion": "Yes .", "label": False}
    Path("kto.jsonl").write_text(json.dumps(row) + "\n")
    return "bot"


def test_in_and_out(run, capsys):
    assert feedback.main(["import", "--run", run, "kto.jsonl"]) == 0
    assert "kto.jsonl (kto): 1 dialogues and 1 events added; 0 were there already" in capsys.readouterr().err
    assert feedback.main(["export", "--run", run, "out.jsonl"]) == 0
    assert "1 rows written to out.jsonl" in capsys.readouterr().err
    assert json.loads(Path("out.jsonl").read_text())["turns"][1]["text"] == "Yes ."
    assert feedback.main(["export", "--run", run, "trl.jsonl", "--format", "kto", "--messages"]) == 0
    assert json.loads(Path("trl.jsonl").read_text())["completion"] == [{"role": "assistant", "content": "Yes ."}]
    assert feedback.main(["export", "--run", run, "folder", "--format", "kto"]) == 0
    assert Path("folder/dataset_info.json").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "out.txt"], "does not end in .jsonl"),
        (["export", "out.jsonl", "--messages"], "--messages: is for --format kto and dpo"),
        (["export", "out.jsonl"], "there are no dialogues to export yet"),
        (["export", "nowhere/../model/x/out.jsonl", "--format", "dpo"], "there are no edits or choices"),
        (["export", "model/config.json/out.jsonl"], "cannot be written"),
        (["import", "absent.csv"], "no such file or folder"),
        (["backup", "bot/feedback.sqlite"], "is the store itself"),
        (["backup", "model"], "cannot be written; name a file"),
    ],
)
def test_what_cannot_be_done_is_one_message(run, words, message, capsys):
    assert feedback.main([words[0], "--run", run, *words[1:]]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_backup_is_a_store(run, capsys):
    assert feedback.main(["import", "--run", run, "kto.jsonl"]) == 0
    assert feedback.main(["backup", "--run", run, "copy.sqlite"]) == 0
    assert "copied to copy.sqlite" in capsys.readouterr().err
    assert Store(Path("copy.sqlite"), Bot(run).id).last_event() == 1
