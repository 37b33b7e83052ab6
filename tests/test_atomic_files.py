"""Files are written whole, and JSON is read back."""

import json
import os
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from rlhf_dialog.atomic_files import atomic_folder, repair_swaps, replace_json, write_json
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import as_read_again, damage_as_user_error, json_or, load_json, parse_json, read_json


def test_a_killed_write_leaves_no_half_folder_behind(tmp_path):
    (tmp_path / ".iter_000003.tmp").mkdir()  # of a process that was killed
    (tmp_path / ".iter_000003.tmp/policy.safetensors").write_text("half")
    (tmp_path / "iter_000003").mkdir()
    (tmp_path / "iter_000003/old").write_text("old")
    with atomic_folder(tmp_path / "iter_000003") as target:
        assert list(target.iterdir()) == []
        (target / "new").write_text("new")
        assert (tmp_path / "iter_000003/old").exists()  # until the new one is whole
    assert [path.name for path in (tmp_path / "iter_000003").iterdir()] == ["new"]
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "iter_000003"):
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["iter_000003"]
    assert [path.name for path in (tmp_path / "iter_000003").iterdir()] == ["new"]


def test_replace_json(tmp_path):
    replace_json(tmp_path / "very/deep/x.json", {"a": 1})
    replace_json(tmp_path / "very/deep/x.json", {"a": [2]})
    assert json.loads((tmp_path / "very/deep/x.json").read_text()) == {"a": [2]}
    assert [path.name for path in (tmp_path / "very/deep").iterdir()] == ["x.json"]
    with pytest.raises(UserError, match="cannot be written"):
        replace_json(tmp_path / "very/deep/x.json/y.json", {})


def test_a_swap_that_was_killed_is_taken_back_or_finished(tmp_path):
    for name in ("back", ".done.old", "done", ".half.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "back").rename(tmp_path / ".back.old")
    (tmp_path / ".file.tmp").write_text("half")
    repair_swaps(tmp_path, ("back", "done", "half", "file", "absent"))
    assert {path.name: (path / "file").read_text() for path in tmp_path.iterdir()} == {"back": "back", "done": "done"}
    (tmp_path / "back").rename(tmp_path / ".back.old")
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "back"):
        raise KeyboardInterrupt
    assert (tmp_path / "back/file").read_text() == "back"


def test_a_swap_that_fails_brings_the_old_folder_back(tmp_path, monkeypatch):
    with atomic_folder(tmp_path / "agent") as target:
        (target / "file").write_text("old")
    real = Path.rename

    def refuse(self, target):
        if self.name.endswith(".tmp"):
            raise OSError("Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(UserError, match="Input/output error"), atomic_folder(tmp_path / "agent") as target:
        (target / "file").write_text("new")
    assert {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == {
        tmp_path / "agent/file": "old"
    }


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
def test_what_is_not_a_regular_file_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"cannot be written: .*not a regular file"):
        replace_json(tmp_path / "pipe", {})
    assert [path.is_fifo() for path in tmp_path.iterdir()] == [True]


DEEP = "[" * 100_000


class Count(BaseModel):
    count: int


def test_what_was_written_is_read(tmp_path):
    write_json(tmp_path / "a.json", {"name": "Zoé", "of": [1, None, 0.5]})
    assert read_json(tmp_path / "a.json") == {"name": "Zoé", "of": [1, None, 0.5]}
    assert parse_json('{"count": 3, "more": [1]}', Count) == {"count": 3, "more": [1]}  # what the shape does not name
    assert as_read_again({1: (2, float)}) == {"1": [2, "<class 'float'>"]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b'{"count": 3', "Expecting ',' delimiter"),
        (b"\xff", "can't decode byte 0xff"),
        (DEEP.encode(), "is nested too deeply"),
        (b"1" * 5000, "Exceeds the limit"),
        (b"{}", "count: Field required"),
    ],
)
def test_damage_is_one_sentence_with_the_file_the_fault_and_what_to_do(tmp_path, content, said):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^{re.escape(str(path))}: is damaged: .*{said}.*; make it again$") as raised:
        read_json(path, end="; make it again", shape=Count)
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match=rf"^key: cannot be read \(.*{said}"):
        read_json(path, "key: cannot be read (", shape=Count)
    assert json_or(path, {"count": 0}, Count) == {"count": 0}
    with pytest.raises((OSError, ValueError), match=said if content != b"{}" else "Count"):
        load_json(path, Count)


def test_what_its_readers_raise_is_a_sentence_too():
    for wrong, said in (
        (lambda: {}["format_version"], "KeyError: 'format_version'"),
        (lambda: [].keys(), "'list' object has no attribute 'keys'"),
        (lambda: [] > 1, "'>' not supported between instances of 'list' and 'int'"),
    ):
        with pytest.raises(UserError) as raised, damage_as_user_error("x: is damaged (", ")"):
            wrong()
        assert str(raised.value) == f"x: is damaged ({said})"
    with pytest.raises(UserError, match=r"^its own$"), damage_as_user_error("x: is damaged: "):
        raise UserError("its own")
