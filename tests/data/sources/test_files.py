"""Reading: every kind of file, folder and archive gives the dialogues that were written, and damage gives one UserError."""

import json

import pytest

from rlhf_dialog.data.sources import DialogueRecord, load_records
from rlhf_dialog.errors import MissingSplit, UserError
from tests.parts.data_files import TALK, csv_bytes, error_of, jsonl_bytes, load, parquet_bytes


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".parquet", ".CSV"])
def test_one_file_is_train_only(tmp_path, suffix):
    encode = {
        ".jsonl": jsonl_bytes,
        ".json": lambda rows: json.dumps(rows).encode(),
        ".tsv": lambda rows: csv_bytes(rows, delimiter="\t"),
        ".parquet": parquet_bytes,
    }.get(suffix, csv_bytes)
    path = tmp_path / f"mine{suffix}"
    path.write_bytes(encode([{"dialog": ["a", "b"], "act": [1, 2]}]))
    assert load_records(str(path), "train") == [DialogueRecord(["a", "b"], [1, 2])]
    with pytest.raises(MissingSplit, match="has no validation split"):
        load_records(str(path), "validation")


def test_csv_with_crlf_quotes_line_breaks_and_a_pandas_index(tmp_path):
    text = b',dialog\r\n0,"[""a, b"", ""c\\nd""]"\r\n\r\n1,"[\'e\',\n \'it\\\'s\']"\r\n'
    assert load(tmp_path, "a.csv", text) == [DialogueRecord(["a, b", "c\nd"]), DialogueRecord(["e", "it's"])]


@pytest.mark.parametrize("key", ["dialog", "utterances", "turns"])
@pytest.mark.parametrize("wrap", [str, lambda t: {"utterance": t, "speaker": 1}, lambda t: {"text": t}])
@pytest.mark.parametrize("act_key", ["act", "acts"])
def test_jsonl_keys(tmp_path, key, wrap, act_key):
    rows = [{key: [wrap(" Hi "), wrap("Hé")], act_key: [2, 1], "id": 7}, {key: [wrap("a"), wrap("b")]}]
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert load_records(str(path), "train") == [
        DialogueRecord(["Hi", "Hé"], [2, 1], meta={"id": 7}),
        DialogueRecord(["a", "b"], None),
    ]


def test_jsonl_folder(tmp_path):
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.jsonl").write_bytes(b'\xef\xbb\xbf{"dialog": ["' + split.encode() + b'", "b"]}\r\n')
    for split in ("train", "validation", "test"):
        assert load_records(str(tmp_path), split)[0].turns == [split, "b"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{'dialog': 1}", ["not JSON"]),
        ("[1, 2]", ["a list", "wanted an object"]),
        ('{"text": "a"}', ["no turns", "'text'"]),
        ('{"dialog": "a"}', ["'dialog' holds text", "list"]),
        ('{"dialog": []}', ["no turns"]),
        ('{"dialog": ["a", null]}', ["turn 2", "null"]),
        ('{"dialog": ["a", {"said": "b"}]}', ["turn 2", "'said'", "'utterance'"]),
        ('{"dialog": ["a", " "]}', ["turn 2 of 2 is empty"]),
        ('{"dialog": ["a", "b"], "act": [1]}', ["2 turns but 1 acts"]),
        ('{"dialog": ["a"], "act": [0]}', ["act 1 is 0"]),
        ('{"dialog": ["a"], "act": [true]}', ["act 1 is True"]),
        ('{"dialog": ["a"], "act": [1.5]}', ["act 1 is 1.5"]),
        ('{"dialog": ["a"], "act": 1}', ["'act' holds a number"]),
        ("", ["blank"]),
    ],
)
def test_jsonl_errors_name_file_and_line(tmp_path, line, words):
    path = tmp_path / "mine.jsonl"
    path.write_text(f'{{"dialog": ["a", "b"]}}\n{line}\n{{"dialog": ["c"]}}\n')
    message = error_of(path)
    for word in ["mine.jsonl, line 2", *words]:
        assert word in message


def test_one_jsonl_file_is_train_only(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"dialog": ["a", "b"]}\n')
    assert "validation.jsonl" in error_of(path, "test")


ERRORS = [
    ("a.csv", "dialog,act\n\"['a', 'b']\"\n", ["a.csv, line 2", "1 cells", "2 columns"]),
    ("a.csv", "dialog;act\n[];[]\n", ["a.csv, line 1", "separate the cells by commas"]),
    ("a.tsv", "dialog,act\n[],[]\n", ["separate the cells by tabs"]),
    ("a.csv", 'dialog\n"[\n', ["a.csv, line 2", "quotation mark"]),
    ("a.csv", "id,text,text\n1,a,b\n", ["'text' is named twice"]),
    ("a.csv", "dialog\n", ["a.csv: there are no rows"]),
    ("a.csv", "", ["a.csv: there are no rows"]),
    ("a.csv", b"id,text\n1,a\xff\n", ["a.csv, line 2", "0xff at column 4", "UTF-8"]),
    ("a.json", "{}", ["a.json: holds an object", ".jsonl"]),
    ("a.json", TALK * 2, ["a.json: is not JSON", ".jsonl"]),
    ("a.json", "[]", ["a.json: there are no rows"]),
    ("a.json", " ", ["a.json: the file is empty"]),
    ("a.json", '[{"dialog": ["a"]}, 7]', ["a.json, row 2: holds a number"]),
]


@pytest.mark.parametrize(("name", "content", "words"), ERRORS, ids=range(len(ERRORS)))
def test_errors_say_where_and_what(tmp_path, name, content, words):
    with pytest.raises(UserError) as caught:
        load(tmp_path, name, content)
    for word in words:
        assert word in str(caught.value)
