"""Every kind of folder and archive gives the dialogues that were written; splits, folders and archives that cannot be read."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from rlhf_dialog.data.sources import DialogueRecord, load_records, trees
from rlhf_dialog.errors import UserError
from tests.parts.data_files import HTML, TALK, WRITERS, error_of, folder_of_zips, load, load_folder, rows_of, zipped
from tests.parts.processes import HANGING, start_python
from tests.parts.tiny import SPLITS, write_data


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_every_layout_gives_what_was_written(tmp_path, writer):
    path = writer(tmp_path)
    for split in SPLITS:
        expected = [DialogueRecord(row["dialog"], row["act"]) for row in rows_of(split)]
        assert load_records(str(path), split) == expected


def test_original_layout_wins_over_its_own_zips(tmp_path):
    folder = write_data(folder_of_zips(tmp_path), count=2)
    assert len(load_records(str(folder), "train")) == 2


def test_the_files_further_up_are_taken(tmp_path):
    load(tmp_path, "data/train.csv", "prompt\nb\n")
    load(tmp_path, "train.jsonl", TALK)
    assert load_records(str(tmp_path), "train") == [DialogueRecord(["a", "b"])]


READ_ALL = """
import sys
from rlhf_dialog.data.sources import load_records
for _ in range(3):
    print([len(load_records(path, split)) for path in sys.argv[1:] for split in ("train", "validation", "test")])
"""


@pytest.mark.slow
def test_two_processes_read_the_same_data_and_write_nothing(tmp_path):
    paths = []
    for number, writer in enumerate(WRITERS.values()):
        (tmp_path / str(number)).mkdir()
        paths.append(str(writer(tmp_path / str(number))))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    both = [start_python("-c", READ_ALL, *paths, stdout=subprocess.PIPE) for _ in range(2)]
    expected = f"{[5] * 3 * len(paths)}\n" * 3
    assert [process.communicate(timeout=HANGING)[0] for process in both] == [expected, expected]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_folder_file_and_split_that_cannot_be_read(tmp_path):
    message = error_of(tmp_path)
    assert "dialogues_train.txt" in message
    assert "train.jsonl" in message
    (tmp_path / "a.xlsx").write_text("x")
    assert ".jsonl" in error_of(tmp_path / "a.xlsx")
    assert "train, validation, test" in error_of(tmp_path, "dev")


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(write_data(tmp_path)))
    assert len(load_records("~", "test")) == 20


ERRORS = [
    ("a.zip", zipped({"train.zip": zipped({"train.zip": zipped({})})}), ["a.zip/train.zip: there is no train split"]),
    ("a.zip", zipped({"a/train.jsonl": TALK, "b/train.jsonl": TALK}), ["train split is there more than once"]),
    ("a.zip", zipped({"readme.txt": b"a"}), ["a.zip: there is no train split, found readme.txt"]),
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
    ({"train.jsonl": TALK, "train.csv": "x"}, ["train split is there more than once: train.csv, train.jsonl"]),
    ({"val.jsonl": TALK}, ["there is no train split, found val.jsonl"]),
    ({"train-00000-of-00002.jsonl": TALK}, ["1 parts", "train-00000-of-00002.jsonl", "one is missing"]),
    ({"train-00000-of-999999999.jsonl": TALK}, ["1 parts", "one is missing"]),
    ({"train_1.jsonl": TALK, "train_3.jsonl": TALK}, ["2 parts", "one is missing"]),
    ({"train.jsonl/x": TALK}, ["train.jsonl: cannot be read: Is a directory"]),
    ({"train/dialogues_train.txt": HTML}, ["dialogues_train.txt: this is an HTML page"]),
]


@pytest.mark.parametrize(("files", "words"), FOLDER_ERRORS, ids=range(len(FOLDER_ERRORS)))
def test_errors_of_folders(tmp_path, files, words):
    with pytest.raises(UserError) as caught:
        load_folder(tmp_path, files)
    for word in words:
        assert word in str(caught.value)


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
