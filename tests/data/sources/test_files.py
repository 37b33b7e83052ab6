"""Files of every kind give the dialogues that were written, and damage gives one UserError that says where."""

import json
import zipfile

import datasets
import pytest

from rlhf_dialog.data.sources import DialogueRecord, load_records
from rlhf_dialog.errors import MissingSplit, UserError
from tests.parts.data_files import (
    csv_bytes,
    error_of,
    load,
    rows_of,
    write_split,
)


def test_one_file_is_train_only(tmp_path):
    path = tmp_path / "mine.CSV"
    path.write_bytes(csv_bytes([{"dialog": ["a", "b"], "act": [1, 2]}]))
    assert load_records(str(path), "train") == [DialogueRecord(["a", "b"], [1, 2])]
    with pytest.raises(MissingSplit, match=r"has no validation split.*validation\.csv"):
        load_records(str(path), "validation")


def test_csv_with_crlf_quotes_line_breaks_and_a_pandas_index(tmp_path):
    text = b',dialog\r\n0,"[""a, b"", ""c\\nd""]"\r\n\r\n1,"[\'e\',\n \'it\\\'s\']"\r\n'
    assert load(tmp_path, "a.csv", text) == [DialogueRecord(["a, b", "c\nd"]), DialogueRecord(["e", "it's"])]


def test_a_saved_single_dataset_is_train_only(tmp_path):
    datasets.Dataset.from_list(rows_of("train")).save_to_disk(tmp_path / "one")
    assert len(load_records(str(tmp_path / "one"), "train")) == 5
    with pytest.raises(MissingSplit, match="there is no test split"):
        load_records(str(tmp_path / "one"), "test")


def test_original_layout_tolerates_bom_crlf_and_a_missing_last_separator(tmp_path):
    text = b"\xef\xbb\xbf Hi , Bo . __eou__ \xe2\x80\xa8Hey ! __eou__ \r\nOne__eou__Two"
    path = write_split(tmp_path, text, "1 2 \r\n3 4")
    assert load_records(path, "train") == [
        DialogueRecord(["Hi , Bo .", "Hey !"], [1, 2]),
        DialogueRecord(["One", "Two"], [3, 4]),
    ]
    without = write_split(tmp_path / "without", "a __eou__ b __eou__\n")
    assert load_records(without, "train") == [DialogueRecord(["a", "b"], None)]


@pytest.mark.parametrize(
    ("text", "acts", "words"),
    [
        ("a __eou__\nb __eou__ c __eou__\n", "1\n1 2 3\n", ["dialogues_train.txt, line 2", "2 turns but 3 acts"]),
        ("a __eou__\n\nb __eou__\n", "1\n1\n1\n", ["dialogues_train.txt, line 2", "blank"]),
        ("a __eou__\nb __eou__\n", "1\n\n", ["dialogues_act_train.txt, line 2", "blank"]),
        ("a __eou__ __eou__ c __eou__\n", "1 1 1\n", ["dialogues_train.txt, line 1", "turn 2 of 3 is empty"]),
        ("__eou__\n", "1\n", ["dialogues_train.txt, line 1", "turn 1 of 1 is empty"]),
        ("a __eou__\nb __eou__\n", "1\n5\n", ["dialogues_act_train.txt, line 2", "act 1 is '5'"]),
        ("a __eou__\nb __eou__\n", "0\n1\n", ["dialogues_act_train.txt, line 1", "act 1 is '0'"]),
        ("a __eou__\nb __eou__\n", "1\nx\n", ["dialogues_act_train.txt, line 2", "act 1 is 'x'", "3 directive"]),
        ("a __eou__\nb __eou__\n", "1\n", ["dialogues_act_train.txt", "1 lines", "has 2"]),
        (b"a __eou__\nb\xff __eou__\n", "1\n1\n", ["dialogues_train.txt, line 2", "0xff at column 2", "UTF-8"]),
        ("", None, ["dialogues_train.txt", "empty"]),
        ("\n", None, ["dialogues_train.txt, line 1", "blank"]),
    ],
)
def test_original_layout_errors_name_file_and_line(tmp_path, text, acts, words):
    message = error_of(write_split(tmp_path, text, acts))
    for word in words:
        assert word in message


def pair(said, user_acts, answer, system_acts):
    return {"usr": {"transcript": said, "dialog_act": user_acts}, "sys": {"sent": answer, "dialog_act": system_acts}}


ROW = {
    "dial": [
        pair(
            "Thai food, please. ", {"inform": [["food", "Thai"]]}, "There is Ada.", {"inform": [["name", "Ada Thai"]]}
        ),
        pair("Their phone?", {"request": [["phone", "?"], ["area", "?"]]}, "It is 11.", {}),
    ],
    "dialogue_id": 7,
    "goal": {"text": "Task 1: ...", "info": {"food": "thai"}, "reqt": ["phone", "area"]},
}


def write(folder, split, rows):
    with zipfile.ZipFile(folder / f"{split}.json.zip", "w") as archive:
        archive.writestr(f"{split}.json", json.dumps(rows))


def test_a_dialogue_with_its_goal_and_acts(tmp_path):
    write(tmp_path, "val", [ROW])
    (record,) = load_records(str(tmp_path), "validation")
    assert record.turns == ["Thai food, please.", "There is Ada.", "Their phone?", "It is 11."]
    assert record.acts is None
    assert record.meta == {
        "goal": {"text": "Task 1: ...", "constraints": {"food": "thai"}, "requests": ["phone", "area"]},
        "dialogue_acts": ["inform(food=thai)", "inform(name=ada thai)", "request(phone) request(area)", ""],
    }


@pytest.mark.parametrize("wrong", [{"dial": [{"usr": {}}]}, {"dial": ROW["dial"]}, {"dial": ROW["dial"], "goal": []}])
def test_a_row_that_lacks_a_part_is_named(tmp_path, wrong):
    write(tmp_path, "test", [ROW, wrong])
    with pytest.raises(UserError, match=r"test\.json.*2.*is not a dialogue of CamRest676"):
        load_records(str(tmp_path), "test")


@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "train.csv"])
def test_a_row_that_is_nested_very_deeply_is_an_error_of_its_file(tmp_path, name):
    deep = "[" * 60_000 + "]" * 60_000
    texts = {
        "train.jsonl": f'{{"messages": {deep}}}\n',
        "train.json": f'[{{"x": {deep}}}]',
        "train.csv": f"dialog\n{deep}\n",
    }
    (tmp_path / name).write_text(texts[name])
    with pytest.raises(UserError, match=name):
        load_records(str(tmp_path), "train")
