"""Folders and zip archives: what is damaged, encrypted, too large or not to be read."""

import os
import socket
from pathlib import Path

import pytest

from rlhf_dialog.data.sources import DialogueRecord, load_records, trees
from rlhf_dialog.errors import UserError
from tests.parts.data_files import HTML, TALK, load, load_folder, zipped


def test_nothing_outside_of_an_archive_is_read_or_written(tmp_path):
    data = zipped({"../evil/train.jsonl": TALK, "../x.txt": b"x"})
    assert load(tmp_path, "deep/a.zip", data) == [DialogueRecord(["a", "b"])]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.zip"]


def test_flipped_bits_and_encryption_and_size_in_a_zip(tmp_path, monkeypatch):
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
    monkeypatch.setattr(trees, "MAX_BYTES", 100)
    with pytest.raises(UserError, match=r"train.jsonl: unpacked, it has 1150 bytes"):
        load(tmp_path, "a.zip", bytes(data))


def test_no_permission(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "train.jsonl").write_text(TALK)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    for path in (tmp_path, tmp_path / "train.jsonl"):
        with pytest.raises(UserError, match=r"train.jsonl: cannot be read: Permission denied"):
            load_records(str(path), "train")


def test_a_folder_that_may_not_be_listed(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(trees.os, "scandir", refuse)
    with pytest.raises(UserError, match=r"cannot be read: Permission denied"):
        load_records(str(tmp_path), "train")


ERRORS = [
    ("a.zip", b"PK and no archive", ["a.zip: cannot be read from a zip archive"]),
    ("a.zip", zipped({"train.jsonl": TALK})[:-20], ["a.zip: cannot be read from a zip archive"]),
    ("a.zip", zipped({"train.zip": b"no"}), ["a.zip/train.zip: cannot be read from a zip archive"]),
    ("a.zip", zipped({"train/dialogues_train.txt": HTML}), ["a.zip/train/dialogues_train.txt: this is an HTML page"]),
    *[
        (f"a.{kind}", HTML, ["this is an HTML page", "download failed"])
        for kind in ("jsonl", "json", "csv", "tsv", "parquet", "zip")
    ],
]


@pytest.mark.parametrize(("name", "content", "words"), ERRORS, ids=range(len(ERRORS)))
def test_errors_say_where_and_what(tmp_path, name, content, words):
    with pytest.raises(UserError) as caught:
        load(tmp_path, name, content)
    for word in words:
        assert word in str(caught.value)


FOLDER_ERRORS = [
    ({"train.jsonl/x": TALK}, ["train.jsonl: cannot be read: Is a directory"]),
    ({"train/dialogues_train.txt": HTML}, ["dialogues_train.txt: this is an HTML page"]),
]


@pytest.mark.parametrize(("files", "words"), FOLDER_ERRORS, ids=range(len(FOLDER_ERRORS)))
def test_errors_of_folders(tmp_path, files, words):
    with pytest.raises(UserError) as caught:
        load_folder(tmp_path, files)
    for word in words:
        assert word in str(caught.value)


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


def test_links_to_files_are_read(tmp_path):
    (tmp_path / "data.jsonl").write_text(TALK)
    (tmp_path / "train.jsonl").symlink_to(tmp_path / "data.jsonl")
    assert load_records(str(tmp_path / "train.jsonl"), "train") == [DialogueRecord(["a", "b"])]


def test_all_that_is_read_of_an_archive_has_a_limit(tmp_path, monkeypatch):
    shards = {f"train-0000{i}-of-00003.jsonl": TALK for i in range(3)}
    assert len(load(tmp_path, "a.zip", zipped(shards))) == 3
    monkeypatch.setattr(trees, "MAX_BYTES", 3 * len(TALK) - 1)
    total = 3 * len(TALK)
    with pytest.raises(
        UserError, match=rf"train-00002-of-00003.jsonl: unpacked, .* before {total}, but the limit of an archive"
    ):
        load(tmp_path, "a.zip", zipped(shards))
