"""What cannot be read is one error that says where and what: for each case, words that must appear."""

import pytest

from rlhf_dialog.errors import UserError
from tests.parts.data_files import (
    HTML,
    TALK,
    error_of,
    load,
    load_folder,
    parquet_bytes,
    rows_of,
    write_split,
    zipped,
)

FILES = [  # name, content, words
    # -- the bytes of a file
    ("a.csv", "dialog,act\n\"['a', 'b']\"\n", ["a.csv, line 2", "1 cells", "2 columns"]),
    ("a.csv", "dialog;act\n[];[]\n", ["a.csv, line 2", "no turns", "found 'dialog;act'"]),
    ("a.tsv", "dialog,act\n[],[]\n", ["no turns", "found 'dialog,act'"]),
    ("a.csv", 'dialog\n"[\n', ["a.csv, line 2", "quotation mark"]),
    ("a.csv", "id,text,text\n1,a,b\n", ["'text' is named twice"]),
    ("a.csv", "dialog\n", ["a.csv: there are no rows"]),
    ("a.csv", b"id,text\n1,a\xff\n", ["a.csv, line 2", "0xff", "UTF-8"]),
    ("a.json", "{}", ["a.json: holds an object", ".jsonl"]),
    ("a.json", TALK * 2, ["a.json: is not JSON", ".jsonl"]),
    ("a.json", '[{"dialog": ["a"]}, 7]', ["a.json, row 2: holds a number"]),
    ("a.parquet", parquet_bytes(rows_of("train"))[:-90], ["a.parquet: cannot be read as a parquet file"]),
    # -- archives
    ("a.zip", zipped({"train.zip": zipped({"train.zip": zipped({})})}), ["a.zip/train.zip: there is no train split"]),
    ("a.zip", zipped({"a/train.jsonl": TALK, "b/train.jsonl": TALK}), ["train split is there more than once"]),
    ("a.zip", zipped({"readme.txt": b"a"}), ["a.zip: there is no train split, found readme.txt"]),
    ("a.zip", b"PK and no archive", ["a.zip: cannot be read from a zip archive"]),
    ("a.zip", zipped({"train.zip": b"no"}), ["a.zip/train.zip: cannot be read from a zip archive"]),
    ("a.csv", HTML, ["this is an HTML page", "download failed"]),
    ("a.parquet", HTML, ["this is an HTML page"]),
    ("a.zip", HTML, ["this is an HTML page"]),
    # -- rows
    ("a.csv", "dialog\n\"['a', 'b']\"\nhello\n", ["a.csv, line 3", "'dialog' holds text"]),
    ("a.csv", "dialogs,y\na,b\n", ["a.csv, line 2", "'dialogs', 'y'", "did you mean 'dialog'"]),
    ("a.csv", "id,text\n1,a\n2,b\n1,c\n", ["a.csv, line 4", "dialogue '1' continues"]),
    ("a.csv", "id,text\n1,a\n,b\n", ["a.csv, line 3", "'id' holds null"]),
    ("a.csv", "id,text\n1,a\n1,\n", ["a.csv, line 3", "'text' holds null"]),
    ("a.jsonl", '{"dialog": ["a", "b"], "references": [["c"]]}', ["'references' holds", "2 turns"]),
    ("a.jsonl", '{"dialog": ["a", "b"], "references": [["c"], [1]]}', ["'references' of turn 2 holds a number"]),
    ("a.jsonl", '{"prompt": 7}', ["'prompt' holds a number"]),
    ("a.jsonl", '{"prompt": "a"}\n{"prompt": "b", "act": [1]}', ["line 2: 'act' is [1]"]),
    ("a.jsonl", '{"prompt": "a", "reference": " "}', ["line 1: 'reference' holds an empty text"]),
    ("a.jsonl", '{"dialog": ["a", "b"], "act": 1}', ["line 1", "'act' holds a number", "a list with one act per turn"]),
    ("a.parquet", parquet_bytes([{"text": "a"}]), ["a.parquet, row 1: no turns", "'text'"]),
    ("a.csv", "dialog\n\"['a' 'b']\"\n", ["a.csv, line 2", "numpy", "json.dumps"]),
    ("a.csv", "dialog\n[{[1]: 2}]\n", ["a.csv, line 2", "neither a JSON nor a Python list"]),
    ("a.csv", 'dialog,act\n"[""a"", ""b""]",[1 2]\n', ["a.csv, line 2", "'act'", "numpy"]),
    ("a.csv", "id,text,act\n1,a,1\n1,b,\n", ["a.csv, line 2", "act 2 is null"]),
    ("a.csv", "id,text,act\n1,a,questoin\n", ["act 1 is 'questoin'", "did you mean 'question'"]),
    ("a.jsonl", '{"dialog": [' + "[" * 900 + "]" * 900 + "]}", ["turn 1", "a list"]),
    ("a.xlsx", "x", ["a.xlsx: unknown file type", ".jsonl"]),
    ("a.jsonl", '{"dialog": ["a", "\\ud800"]}', ["line 1", "half a character"]),
    ("a.jsonl", '{"dialog": ["a"], "act": [NaN, 1]}', ["act 1 is null"]),
    ("a.parquet", parquet_bytes([{"dialog": ["a", None]}]), ["a.parquet, row 1: turn 2 of 2 holds null"]),
    ("a.parquet", parquet_bytes([{"dialog": [b"a"]}]), ["a.parquet, row 1: turn 1 of 1 holds bytes"]),
    ("a.jsonl", '{"messages": [{"content": [{"type": "image_url"}]}]}', ["turn 1", "image_url", "'type': 'text'"]),
    ("a.jsonl", '{"messages": [{"role": "system", "content": null}]}', ["system message 1 holds null"]),
    ("a.jsonl", '{"messages": [{"role": "system", "content": "a"}]}', ["the dialogue has no turns"]),
]
LINES = [  # the second of three lines of mine.jsonl
    ("{'dialog': 1}", ["not JSON"]),
    ('{"text": "a"}', ["no turns", "'text'"]),
    ('{"dialog": []}', ["no turns"]),
    ('{"dialog": ["a", null]}', ["turn 2", "null"]),
    ('{"dialog": ["a", {"said": "b"}]}', ["turn 2", "'said'", "utterance"]),
    ('{"dialog": ["a", " "]}', ["turn 2 of 2 holds an empty text"]),
    ('{"dialog": ["a", "b"], "act": [1]}', ["2 turns but 1 acts"]),
    ('{"dialog": ["a"], "act": [0]}', ["act 1 is 0"]),
    ('{"dialog": ["a"], "act": [true]}', ["act 1 is True"]),
    ('{"dialog": ["a"], "act": [1.5]}', ["act 1 is 1.5"]),
    ("", ["blank"]),
]
FOLDERS = [  # name -> content
    ({"state.json": "{}"}, ["state.json: this is not the state.json of a saved data set"]),
    ({"train/state.json": '{"_data_files": []}'}, ["train/state.json: names no files"]),
    ({"state.json": '{"_data_files": [{"filename": "../a.arrow"}]}', "a.arrow": "x"}, ["a.arrow: cannot be read as"]),
    ({"state.json": '{"_data_files": [{"filename": "b.arrow"}]}'}, ["b.arrow: the file is missing"]),
    ({"train.jsonl": TALK, "train.csv": "x"}, ["train split is there more than once: train.csv, train.jsonl"]),
    ({"val.jsonl": TALK}, ["there is no train split, found val.jsonl"]),
    ({"train-00000-of-00002.jsonl": TALK}, ["1 parts", "train-00000-of-00002.jsonl", "one is missing"]),
    ({"train_1.jsonl": TALK, "train_3.jsonl": TALK}, ["2 parts", "one is missing"]),
    ({"train/dialogues_train.txt": HTML}, ["dialogues_train.txt: this is an HTML page"]),
]
ORIGINAL = [  # dialogues_train.txt, dialogues_act_train.txt
    ("a __eou__\nb __eou__ c __eou__\n", "1\n1 2 3\n", ["dialogues_train.txt, line 2", "2 turns but 3 acts"]),
    ("a __eou__\n\nb __eou__\n", "1\n1\n1\n", ["dialogues_train.txt, line 2", "blank"]),
    ("a __eou__\nb __eou__\n", "1\n\n", ["dialogues_act_train.txt, line 2", "blank"]),
    ("a __eou__ __eou__ c __eou__\n", "1 1 1\n", ["dialogues_train.txt, line 1", "turn 2 of 3 holds an empty"]),
    ("a __eou__\nb __eou__\n", "1\nx\n", ["dialogues_act_train.txt, line 2", "act 1 is 'x'", "3 directive"]),
    ("a __eou__\nb __eou__\n", "1\n", ["dialogues_act_train.txt", "1 lines", "has 2"]),
    (b"a __eou__\nb\xff __eou__\n", "1\n1\n", ["dialogues_train.txt, line 2", "0xff", "UTF-8"]),
    ("", None, ["dialogues_train.txt", "empty"]),
]


@pytest.mark.parametrize(("name", "content", "words"), FILES, ids=range(len(FILES)))
def test_a_file(tmp_path, name, content, words):
    with pytest.raises(UserError) as caught:
        load(tmp_path, name, content)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(("line", "words"), LINES, ids=range(len(LINES)))
def test_a_line(tmp_path, line, words):
    path = tmp_path / "mine.jsonl"
    path.write_text(f'{{"dialog": ["a", "b"]}}\n{line}\n{{"dialog": ["c"]}}\n')
    message = error_of(path)
    assert [word for word in ["mine.jsonl, line 2", *words] if word not in message] == []


@pytest.mark.parametrize(("files", "words"), FOLDERS, ids=range(len(FOLDERS)))
def test_a_folder(tmp_path, files, words):
    with pytest.raises(UserError) as caught:
        load_folder(tmp_path, files)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(("text", "acts", "words"), ORIGINAL, ids=range(len(ORIGINAL)))
def test_the_original_layout(tmp_path, text, acts, words):
    message = error_of(write_split(tmp_path, text, acts))
    assert [word for word in words if word not in message] == []


def test_a_folder_without_data_and_a_split_that_nobody_has(tmp_path):
    message = error_of(tmp_path)
    assert all(word in message for word in ("dialogues_train.txt", "train.jsonl", "found nothing"))
    assert "train, validation, test" in error_of(tmp_path, "dev")
