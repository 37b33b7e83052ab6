"""Every kind of file, folder and archive gives the dialogues that were written, and reading writes nothing."""

import json
import os
import socket
import zipfile
from pathlib import Path

import datasets
import pytest

from rlhf_dialog.data.sources import DialogueRecord, files, load_records
from rlhf_dialog.errors import MissingSplit, UserError
from tests.parts.data_files import (
    TALK,
    WRITERS,
    csv_bytes,
    error_of,
    folder_of_zips,
    load,
    load_folder,
    parquet_bytes,
    rows_of,
    write_split,
    zipped,
)
from tests.parts.tiny import SPLITS, write_data

AB = [DialogueRecord(["a", "b"])]


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_every_layout_gives_what_was_written(tmp_path, writer):
    path = writer(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for split in SPLITS:
        expected = [DialogueRecord(row["dialog"], row["act"]) for row in rows_of(split)]
        assert load_records(str(path), split) == expected
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_one_file_and_one_saved_dataset_are_train_only(tmp_path):
    path = tmp_path / "mine.CSV"
    path.write_bytes(csv_bytes([{"dialog": ["a", "b"], "act": [1, 2]}]))
    assert load_records(str(path), "train") == [DialogueRecord(["a", "b"], [1, 2])]
    with pytest.raises(MissingSplit, match=r"has no validation split.*validation\.csv"):
        load_records(str(path), "validation")
    datasets.Dataset.from_list(rows_of("train")).save_to_disk(tmp_path / "one")
    assert len(load_records(str(tmp_path / "one"), "train")) == 5
    with pytest.raises(MissingSplit, match="there is no test split"):
        load_records(str(tmp_path / "one"), "test")


def test_csv_with_crlf_quotes_line_breaks_and_a_pandas_index(tmp_path):
    text = b',dialog\r\n0,"[""a, b"", ""c\\nd""]"\r\n\r\n1,"[\'e\',\n \'it\\\'s\']"\r\n'
    assert load(tmp_path, "a.csv", text) == [DialogueRecord(["a, b", "c\nd"]), DialogueRecord(["e", "it's"])]


def test_original_layout_tolerates_bom_crlf_and_a_missing_last_separator(tmp_path):
    text = b"\xef\xbb\xbf Hi , Bo . __eou__ \xe2\x80\xa8Hey ! __eou__ \r\nOne__eou__Two"
    path = write_split(tmp_path, text, "1 2 \r\n3 4")
    assert load_records(path, "train") == [
        DialogueRecord(["Hi , Bo .", "Hey !"], [1, 2]),
        DialogueRecord(["One", "Two"], [3, 4]),
    ]
    assert load_records(write_split(tmp_path / "without", "a __eou__ b __eou__\n"), "train") == AB


def test_what_wins_where_a_split_is_there_in_several_forms(tmp_path):
    folder = write_data(folder_of_zips(tmp_path), count=2)
    assert len(load_records(str(folder), "train")) == 2  # the original layout, before its zips
    assert load_folder(tmp_path / "a", {"data/train.csv": "prompt\nb\n", "train.jsonl": TALK}) == AB  # further up
    assert load_folder(tmp_path / "b", {"data/train/0000.parquet": parquet_bytes([{"dialog": ["a", "b"]}])}) == AB


TALKS = [
    {"dialogue_id": f"d{i}", "turns": [{"speaker": s, "utterance": s} for s in ("USER", "SYSTEM")]} for i in range(4)
]


def test_all_files_in_the_folder_of_a_split_are_its_parts(tmp_path):
    """MultiWOZ 2.2 and the schema-guided dialogues have train/dialogues_001.json ..., these beside a train/schema.json."""
    named = {f"train/dialogues_{i:03}.json": json.dumps(TALKS[i - 1 : i]) for i in (1, 2, 3)}
    parts = named | {"train/schema.json": "[]", "dev/dialogues_001.json": json.dumps(TALKS[3:]), "schema.json": "[]"}
    records = load_folder(tmp_path / "a", parts)
    assert [record.meta["dialogue_id"] for record in records] == ["d0", "d1", "d2"]
    assert len(load_records(str(tmp_path / "a"), "validation")) == 1
    with pytest.raises(MissingSplit, match=r"no test split.*split: \{test: dev\}"):
        load_records(str(tmp_path / "a"), "test")
    assert len(load_folder(tmp_path / "b", {"train/b.jsonl": TALK, "train/a.jsonl": TALK * 2})) == 3
    ten = {f"train/{i}.jsonl": json.dumps({"dialog": [str(i)]}) for i in range(1, 11)}
    assert [record.turns for record in load_folder(tmp_path / "c", ten)] == [[str(i)] for i in range(1, 11)]
    del named["train/dialogues_002.json"]
    with pytest.raises(UserError, match="one is missing or there twice"):
        load_folder(tmp_path / "d", named)
    with pytest.raises(UserError, match="train split is there more than once"):
        load_folder(tmp_path / "e", {"train/a.jsonl": TALK, "train/a.csv": "x"})


def test_an_object_of_dialogues_is_read_by_their_names(tmp_path):
    """data.json of MultiWOZ 2.1 to 2.4."""
    talk = {"goal": {"hotel": {}}, "log": [{"text": "a", "metadata": {}}, {"text": "b", "metadata": {}}]}
    (tmp_path / "data.json").write_text(json.dumps({"SNG0.json": talk, "SNG1.json": talk}))
    records = load_records(str(tmp_path), "train", {"messages": "log"}, {"train": "data"})
    assert [(record.turns, record.meta["dialog_id"]) for record in records] == [
        (["a", "b"], f"SNG{i}.json") for i in (0, 1)
    ]


def test_what_may_not_be_read(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "train.jsonl").write_text(TALK)
    assert load_records("~", "train") == AB
    for place, name in ((Path, "open"), (files.os, "scandir")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, refuse)
            assert "cannot be read: Permission denied" in error_of(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_only_regular_files_are_read(tmp_path, kind):
    path = tmp_path / "train.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        socket.socket(socket.AF_UNIX).bind(str(path))
    for place in (path, tmp_path):
        with pytest.raises(UserError, match=r"train.jsonl: is a pipe, a device or a socket, not a file"):
            load_records(str(place), "train")


def test_a_link_out_of_a_folder_of_data_is_read_and_named(tmp_path, caplog):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data").mkdir()
    for name in ("elsewhere/talks.jsonl", "data/inside.jsonl"):
        (tmp_path / name).write_text(TALK)
    (tmp_path / "data/train.jsonl").symlink_to("../elsewhere/talks.jsonl")
    (tmp_path / "data/test.jsonl").symlink_to("inside.jsonl")
    assert load_records(str(tmp_path / "data"), "test") == AB
    assert caplog.records == []
    assert load_records(str(tmp_path / "data"), "train") == AB
    (named,) = caplog.messages
    assert f"{tmp_path / 'data/train.jsonl'}" in named
    assert f"{tmp_path / 'elsewhere/talks.jsonl'}" in named


# archives


def test_nothing_outside_of_an_archive_is_read_or_written(tmp_path):
    data = zipped({"../evil/train.jsonl": TALK, "../x.txt": b"x"})
    assert load(tmp_path, "deep/a.zip", data) == AB
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.zip"]


def test_flipped_bits_and_encryption_in_a_zip(tmp_path):
    data = zipped({"train.jsonl": TALK * 50})
    crc = bytearray(data)
    crc[40 + len("train.jsonl")] ^= 0xFF
    encrypted = data
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = encrypted.index(mark) + flags
        encrypted = encrypted[:place] + b"\x01" + encrypted[place + 1 :]
    for changed, words in ((bytes(crc), "CRC"), (encrypted, "encrypted")):
        with pytest.raises(UserError, match=rf"a.zip/train.jsonl: cannot be read .*{words}"):
            load(tmp_path, "a.zip", changed)


def test_all_that_is_read_of_an_archive_has_a_limit(tmp_path, monkeypatch):
    data, size = zipped({f"train-0000{i}-of-00003.jsonl": TALK for i in range(3)}), 3 * len(TALK)
    monkeypatch.setattr(files, "MAX_BYTES", size)
    assert len(load(tmp_path, "a.zip", data)) == 3
    monkeypatch.setattr(files, "MAX_BYTES", size - 1)
    with pytest.raises(UserError, match=rf"train-00002-of-00003.jsonl: .* {size} bytes .* limit is {size - 1}"):
        load(tmp_path, "a.zip", data)


# CamRest676


def pair(said, user_acts, answer, system_acts):
    return {"usr": {"transcript": said, "dialog_act": user_acts}, "sys": {"sent": answer, "dialog_act": system_acts}}


FOOD, NAME = {"inform": [["food", "Thai"]]}, {"inform": [["name", "Ada Thai"]]}
ROW = {
    "dial": [
        pair("Thai food, please. ", FOOD, "There is Ada.", NAME),
        pair("Their phone?", {"request": [["phone", "?"], ["area", "?"]]}, "It is 11.", {}),
    ],
    "dialogue_id": 7,
    "goal": {"text": "Task 1: ...", "info": {"food": "thai"}, "reqt": ["phone", "area"]},
}


def camrest(folder, rows):
    with zipfile.ZipFile(folder / "val.json.zip", "w") as archive:
        archive.writestr("val.json", json.dumps(rows))
    return load_records(str(folder), "validation")


def test_a_dialogue_of_camrest_with_its_goal_and_acts(tmp_path):
    (record,) = camrest(tmp_path, [ROW])
    assert record.turns == ["Thai food, please.", "There is Ada.", "Their phone?", "It is 11."]
    assert record.acts is None
    assert record.meta == {
        "goal": {"text": "Task 1: ...", "constraints": {"food": "thai"}, "requests": ["phone", "area"]},
        "dialogue_acts": ["inform(food=thai)", "inform(name=ada thai)", "request(phone) request(area)", ""],
    }
    for wrong in ({"dial": [{"usr": {}}]}, {"dial": ROW["dial"]}, {"dial": ROW["dial"], "goal": []}):
        with pytest.raises(UserError, match=r"val\.json.*2.*is not a dialogue of CamRest676"):
            camrest(tmp_path, [ROW, wrong])
