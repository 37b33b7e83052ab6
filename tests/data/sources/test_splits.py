"""Every kind of folder and archive gives the dialogues that were written; a split that is missing or there twice."""

import subprocess

import pytest

from rlhf_dialog.data.sources import DialogueRecord, load_records
from rlhf_dialog.errors import UserError
from tests.parts.data_files import TALK, WRITERS, error_of, folder_of_zips, load, load_folder, rows_of, zipped
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


@pytest.mark.thorough
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
]


@pytest.mark.parametrize(("files", "words"), FOLDER_ERRORS, ids=range(len(FOLDER_ERRORS)))
def test_errors_of_folders(tmp_path, files, words):
    with pytest.raises(UserError) as caught:
        load_folder(tmp_path, files)
    for word in words:
        assert word in str(caught.value)
