"""Reading: the original layout, JSONL, and the Hub with a stand-in for `datasets.load_dataset`."""

import pytest

from rlhf_dialog.data.sources import DialogueRecord, load_records
from tests.parts.data_files import error_of, write_split
from tests.parts.tiny import dialogues, write_data


def test_original_layout_reads_what_was_written(tmp_path):
    folder = write_data(tmp_path)
    for position, split in enumerate(("train", "validation", "test")):
        expected = [DialogueRecord(turns, acts) for turns, acts in dialogues(20, start=20 * position)]
        assert load_records(str(folder), split) == expected


def test_original_layout_tolerates_bom_crlf_and_a_missing_last_separator(tmp_path):
    text = b"\xef\xbb\xbf Hi , Bo . __eou__ \xe2\x80\xa8Hey ! __eou__ \r\nOne__eou__Two"
    path = write_split(tmp_path, text, "1 2 \r\n3 4")
    assert load_records(path, "train") == [
        DialogueRecord(["Hi , Bo .", "Hey !"], [1, 2]),
        DialogueRecord(["One", "Two"], [3, 4]),
    ]


def test_original_layout_without_acts(tmp_path):
    assert load_records(write_split(tmp_path, "a __eou__ b __eou__\n"), "train") == [DialogueRecord(["a", "b"], None)]


@pytest.mark.parametrize(
    ("text", "acts", "words"),
    [
        ("a __eou__\nb __eou__ c __eou__\n", "1\n1 2 3\n", ["dialogues_train.txt, line 2", "2 turns", "3 acts"]),
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
