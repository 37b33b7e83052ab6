"""The checks that all formats share: turns and acts."""

import pytest

from rlhf_dialog.data.sources import DialogueRecord
from rlhf_dialog.errors import UserError
from tests.parts.data_files import TWO, load, parquet_bytes


def test_acts_that_are_missing_everywhere_are_no_acts(tmp_path):
    assert load(tmp_path, "a.csv", "id,text,act\n1,Hi,\n1,Hey,\n") == [DialogueRecord(TWO)]
    assert load(tmp_path, "a.jsonl", '{"dialog": ["Hi", "Hey"], "act": [NaN, NaN]}') == [DialogueRecord(TWO)]


ERRORS = [
    ("a.csv", "id,text,act\n1,a,1\n1,b,\n", ["a.csv, line 2", "act 2 is null"]),
    ("a.csv", "id,text,act\n1,a,nan\n", ["act 1 is 'nan'"]),
    ("a.csv", "id,text,act\n1,a,questoin\n", ["act 1 is 'questoin'", "did you mean 'question'"]),
    ("a.jsonl", '{"dialog": [' + "[" * 900 + "]" * 900 + "]}", ["turn 1", "a list"]),
    ("a.jsonl", '{"dialog": ["a"], "act": [' + "[" * 900 + "]" * 900 + "]}", ["act 1 is [["]),
    ("a.jsonl", '{"dialog": ["a", "\\ud800"]}', ["line 1", "half a character"]),
    ("a.jsonl", '{"dialog": ["a"], "act": [NaN, 1]}', ["act 1 is null"]),
    ("a.jsonl", '{"dialog": ["a"], "act": [2.5]}', ["act 1 is 2.5"]),
    ("a.parquet", parquet_bytes([{"dialog": ["a", None]}]), ["a.parquet, row 1: turn 2 of 2 holds null"]),
    ("a.parquet", parquet_bytes([{"dialog": [b"a"]}]), ["a.parquet, row 1: turn 1 of 1 holds bytes"]),
]


@pytest.mark.parametrize(("name", "content", "words"), ERRORS, ids=range(len(ERRORS)))
def test_errors_say_where_and_what(tmp_path, name, content, words):
    with pytest.raises(UserError) as caught:
        load(tmp_path, name, content)
    for word in words:
        assert word in str(caught.value)
