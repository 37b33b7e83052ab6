"""Every kind of folder and archive gives the dialogues that were written; splits, folders and archives that cannot be read."""

import os
import socket
from pathlib import Path

import pytest

from rlhf_dialog.data.sources import DialogueRecord, files, load_records
from rlhf_dialog.errors import UserError
from tests.parts.data_files import TALK, WRITERS, error_of, folder_of_zips, load, rows_of, zipped
from tests.parts.tiny import SPLITS, write_data


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_every_layout_gives_what_was_written(tmp_path, writer):
    """And reading writes nothing."""
    path = writer(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for split in SPLITS:
        expected = [DialogueRecord(row["dialog"], row["act"]) for row in rows_of(split)]
        assert load_records(str(path), split) == expected
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_original_layout_wins_over_its_own_zips(tmp_path):
    folder = write_data(folder_of_zips(tmp_path), count=2)
    assert len(load_records(str(folder), "train")) == 2


def test_the_files_further_up_are_taken(tmp_path):
    load(tmp_path, "data/train.csv", "prompt\nb\n")
    load(tmp_path, "train.jsonl", TALK)
    assert load_records(str(tmp_path), "train") == [DialogueRecord(["a", "b"])]


def test_folder_file_and_split_that_cannot_be_read(tmp_path):
    message = error_of(tmp_path)
    assert "dialogues_train.txt" in message
    assert "train.jsonl" in message
    (tmp_path / "a.xlsx").write_text("x")
    assert ".jsonl" in error_of(tmp_path / "a.xlsx")
    assert "train, validation, test" in error_of(tmp_path, "dev")


def test_nothing_outside_of_an_archive_is_read_or_written(tmp_path):
    data = zipped({"../evil/train.jsonl": TALK, "../x.txt": b"x"})
    assert load(tmp_path, "deep/a.zip", data) == [DialogueRecord(["a", "b"])]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.zip"]


def test_flipped_bits_and_encryption_in_a_zip(tmp_path):
    data = bytearray(zipped({"train.jsonl": TALK * 50}))
    crc = bytearray(data)
    crc[40 + len("train.jsonl")] ^= 0xFF
    with pytest.raises(UserError, match=r"a.zip/train.jsonl: cannot be read"):
        load(tmp_path, "a.zip", bytes(crc))
    encrypted = bytes(data)
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = encrypted.index(mark) + flags
        encrypted = encrypted[:place] + b"\x01" + encrypted[place + 1 :]
    with pytest.raises(UserError, match=r"train.jsonl: the file is encrypted"):
        load(tmp_path, "a.zip", encrypted)


def test_what_may_not_be_read(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "train.jsonl").write_text(TALK)
    assert load_records("~", "train") == [DialogueRecord(["a", "b"])]
    for place, name in ((Path, "read_bytes"), (files.os, "scandir")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, refuse)
            assert "cannot be read: Permission denied" in error_of(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="files of POSIX")
@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
@pytest.mark.parametrize("alone", [True, False])
def test_only_regular_files_are_read(tmp_path, kind, alone):
    path = tmp_path / "train.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        socket.socket(socket.AF_UNIX).bind(str(path))
    with pytest.raises(UserError, match=r"train.jsonl: is a pipe, a device or a socket, not a file"):
        load_records(str(path if alone else tmp_path), "train")


def test_a_link_out_of_a_folder_of_data_is_read_and_named(tmp_path, caplog):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data").mkdir()
    for name in ("elsewhere/talks.jsonl", "data/inside.jsonl"):
        (tmp_path / name).write_text(TALK)
    (tmp_path / "data/train.jsonl").symlink_to("../elsewhere/talks.jsonl")
    (tmp_path / "data/test.jsonl").symlink_to("inside.jsonl")
    assert load_records(str(tmp_path / "data"), "train") == [DialogueRecord(["a", "b"])]
    (named,) = [one.getMessage() for one in caplog.records]
    assert f"{tmp_path / 'data/train.jsonl'}" in named
    assert f"{tmp_path / 'elsewhere/talks.jsonl'}" in named
    caplog.clear()
    assert load_records(str(tmp_path / "data"), "test") == [DialogueRecord(["a", "b"])]
    assert caplog.records == []


def test_all_that_is_read_of_an_archive_has_a_limit(tmp_path, monkeypatch):
    shards = {f"train-0000{i}-of-00003.jsonl": TALK for i in range(3)}
    assert len(load(tmp_path, "a.zip", zipped(shards))) == 3
    monkeypatch.setattr(files, "MAX_BYTES", 3 * len(TALK) - 1)
    total = 3 * len(TALK)
    with pytest.raises(
        UserError, match=rf"train-00002-of-00003.jsonl: unpacked, .* before {total}, but the limit of an archive"
    ):
        load(tmp_path, "a.zip", zipped(shards))
