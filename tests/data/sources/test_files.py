"""Reading: every kind of file, folder and archive gives the dialogues that were written, and damage gives one UserError."""

import csv
import io
import json
import subprocess
import zipfile
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import HANGING, start_python
from tiny import SPLITS, dialogues, write_data

from rlhf_dialog.data.sources import DialogueRecord, load_records, trees
from rlhf_dialog.errors import MissingSplit, UserError

HTML = b"\n<!DOCTYPE html><html><head><title>This domain is for sale</title></head></html>"


def rows_of(split, count=5):
    start = count * SPLITS.index(split)
    return [{"dialog": turns, "act": acts} for turns, acts in dialogues(count, start=start)]


def zipped(files):
    """The bytes of a zip archive of {name: bytes}."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def original_files(folder, split):
    """The files of one split as {"train/dialogues_train.txt": bytes}."""
    write_data(folder, count=5)
    return {f"{split}/{path.name}": path.read_bytes() for path in (folder / split).iterdir()}


def csv_bytes(rows, write=json.dumps, delimiter=","):
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(rows[0])
    writer.writerows([write(v) if isinstance(v, list) else v for v in row.values()] for row in rows)
    return text.getvalue().encode()


def jsonl_bytes(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet_bytes(rows):
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def published(folder):
    """The archive as DailyDialog was published: zips of the splits within a zip."""
    inner = {f"ijcnlp_dailydialog/{split}.zip": zipped(original_files(folder / "x", split)) for split in SPLITS}
    path = folder / "ijcnlp_dailydialog.zip"
    beside = {"ijcnlp_dailydialog/dialogues_text.txt": b"a __eou__\n", "ijcnlp_dailydialog/readme.txt": b"hello"}
    path.write_bytes(zipped({**beside, **inner, "__MACOSX/ijcnlp_dailydialog/._train.zip": b"?"}))
    return path


def zip_below(top):
    def write(folder):
        files = {top + name: data for split in SPLITS for name, data in original_files(folder / "x", split).items()}
        (folder / "data.zip").write_bytes(zipped(files))
        return folder / "data.zip"

    return write


def folder_of_zips(folder):
    (folder / "zips").mkdir()
    for split in SPLITS:
        (folder / "zips" / f"{split}.zip").write_bytes(zipped(original_files(folder / "x", split)))
    return folder / "zips"


def saved(folder):
    sets = {split: datasets.Dataset.from_list(rows_of(split)) for split in SPLITS}
    datasets.DatasetDict(sets).save_to_disk(folder / "saved", num_shards={"train": 2, "validation": 1, "test": 1})
    return folder / "saved"


def one_file_each(suffix, encode, names=SPLITS):
    def write(folder):
        for split, name in zip(SPLITS, names, strict=True):
            path = folder / "files" / f"{name}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(rows_of(split)))
        return folder / "files"

    return write


def shards(folder):
    """Eleven parts of train, so that their order as text is not their order as numbers in the third layout."""
    (folder / "hub/data").mkdir(parents=True)
    for split, count in (("train", 2), ("validation", 1), ("test", 1)):
        rows = rows_of(split)
        for i in range(count):
            part = rows[:2] if i == 0 and count == 2 else rows[2:] if count == 2 else rows
            (folder / f"hub/data/{split}-{i:05}-of-{count:05}.parquet").write_bytes(parquet_bytes(part))
    return folder / "hub"


def numbered(folder):
    for split in SPLITS:
        (folder / "converted" / split).mkdir(parents=True)
        for i, row in enumerate(rows_of(split)):
            (folder / f"converted/{split}/{8 + i}.parquet").write_bytes(parquet_bytes([row]))
    return folder / "converted"


def zip_of_jsonl(folder):
    (folder / "j.zip").write_bytes(zipped({f"talk/{split}.jsonl": jsonl_bytes(rows_of(split)) for split in SPLITS}))
    return folder / "j.zip"


WRITERS = {
    "published zip": published,
    "plain zip": zip_below(""),
    "zip with a top folder": zip_below("dailydialog/"),
    "folder of zips": folder_of_zips,
    "save_to_disk": saved,
    "jsonl": one_file_each(".jsonl", jsonl_bytes),
    "json": one_file_each(".json", lambda rows: json.dumps(rows).encode()),
    "parquet": one_file_each(".parquet", parquet_bytes),
    "csv with JSON": one_file_each(".csv", csv_bytes),
    "csv as pandas writes": one_file_each(".csv", lambda rows: csv_bytes(rows, str)),
    "tsv": one_file_each(".tsv", lambda rows: csv_bytes(rows, delimiter="\t")),
    "val": one_file_each(".csv", csv_bytes, ("train", "val", "test")),
    "dev in data/": one_file_each(".jsonl", jsonl_bytes, ("data/train", "data/dev", "data/test")),
    "valid": one_file_each(".json", lambda rows: json.dumps(rows).encode(), ("train", "valid", "test")),
    "BOM and CRLF": one_file_each(".csv", lambda rows: b"\xef\xbb\xbf" + csv_bytes(rows)),
    "shards": shards,
    "numbered shards": numbered,
    "zip of jsonl": zip_of_jsonl,
}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_every_layout_gives_what_was_written(tmp_path, writer):
    path = writer(tmp_path)
    for split in SPLITS:
        expected = [DialogueRecord(row["dialog"], row["act"]) for row in rows_of(split)]
        assert load_records(str(path), split) == expected


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


def test_a_saved_single_dataset_is_train_only(tmp_path):
    datasets.Dataset.from_list(rows_of("train")).save_to_disk(tmp_path / "one")
    assert len(load_records(str(tmp_path / "one"), "train")) == 5
    with pytest.raises(MissingSplit, match="has no test split"):
        load_records(str(tmp_path / "one"), "test")


def test_original_layout_wins_over_its_own_zips(tmp_path):
    folder = write_data(folder_of_zips(tmp_path), count=2)
    assert len(load_records(str(folder), "train")) == 2


TALK = '{"dialog": ["a", "b"]}\n'
TWO = ["Hi", "Hey"]


def load(folder, name, content, split="train"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_records(str(path), split)


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (
            {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hey"}]},
            DialogueRecord(TWO),
        ),
        ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hey"}]}, DialogueRecord(TWO)),
        ({"conversation": TWO, "act": ["question", "Inform"]}, DialogueRecord(TWO, [2, 1])),
        ({"dialogue": TWO, "act": [2.0, 1.0]}, DialogueRecord(TWO, [2, 1])),
        ({"turns": TWO, "act": ["2", "1.0"]}, DialogueRecord(TWO, [2, 1])),
        ({"dialog": TWO, "act": [None, None]}, DialogueRecord(TWO)),
        ({"dialog": TWO, "topic": "greetings"}, DialogueRecord(TWO, meta={"topic": "greetings"})),
        ({"dialog": TWO, "references": [None, ["Yo ", "Hi"]]}, DialogueRecord(TWO, references=[[], ["Yo", "Hi"]])),
        (
            {"turns": [{"text": TWO[0], "act": 2}, {"text": TWO[1], "act": 1, "references": ["Hi"]}]},
            DialogueRecord(TWO, acts=[2, 1], references=[[], ["Hi"]]),
        ),
        (
            {
                "messages": [
                    {"role": "system", "content": "s"},
                    *({"role": "user", "content": t, "act": 3} for t in TWO),
                ]
            },
            DialogueRecord(TWO, acts=[3, 3], meta={"system": "s"}),
        ),
        (
            {"messages": [{"role": "system", "content": "Be kind ."}, {"role": "user", "content": "Hi"}], "act": [2]},
            DialogueRecord(["Hi"], [2], meta={"system": "Be kind ."}),
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in TWO]}] * 2},
            DialogueRecord(["Hi Hey", "Hi Hey"]),
        ),
        ({"prompt": "Hi"}, DialogueRecord(["Hi"], is_prompt=True)),
        (
            {"prompt": TWO, "reference": "Yes", "references": ["No", "Yes"], "act": 3, "n": 1},
            DialogueRecord(TWO, [3], [["Yes", "No", "Yes"]], {"n": 1}, True),
        ),
        (
            {"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}], "reference": None},
            DialogueRecord(["Hi"], meta={"system": "S"}, is_prompt=True),
        ),
    ],
)
def test_forms_of_a_row(tmp_path, line, record):
    assert load(tmp_path, "a.jsonl", json.dumps(line)) == [record]
    (tmp_path / "a.parquet").write_bytes(parquet_bytes([line]))
    assert load_records(str(tmp_path / "a.parquet"), "train") == [record]


def test_one_row_an_utterance(tmp_path):
    text = "conversation_id,utterance,act\n7,Hi,question\n7,[laughs] Hey,1\nx,a,3.0\n"
    assert load(tmp_path, "a.csv", text) == [DialogueRecord(["Hi", "[laughs] Hey"], [2, 1]), DialogueRecord(["a"], [3])]


def test_acts_that_are_missing_everywhere_are_no_acts(tmp_path):
    assert load(tmp_path, "a.csv", "id,text,act\n1,Hi,\n1,Hey,\n") == [DialogueRecord(TWO)]
    assert load(tmp_path, "a.jsonl", '{"dialog": ["Hi", "Hey"], "act": [NaN, NaN]}') == [DialogueRecord(TWO)]


def test_csv_with_crlf_quotes_line_breaks_and_a_pandas_index(tmp_path):
    text = b',dialog\r\n0,"[""a, b"", ""c\\nd""]"\r\n\r\n1,"[\'e\',\n \'it\\\'s\']"\r\n'
    assert load(tmp_path, "a.csv", text) == [DialogueRecord(["a, b", "c\nd"]), DialogueRecord(["e", "it's"])]


ERRORS = [
    ("a.csv", "dialog\n\"['a' 'b']\"\n", ["a.csv, line 2", "numpy", "json.dumps"]),
    ("a.csv", "dialog\n\"['a'\n 'b']\"\n", ["a.csv, line 2", "numpy"]),
    ("a.csv", 'dialog,act\n"[""a"", ""b""]",[1 2]\n', ["a.csv, line 2", "'act'", "numpy"]),
    ("a.csv", "dialog\n\"['a', 'b']\"\nhello\n", ["a.csv, line 3", "'dialog' holds text"]),
    ("a.csv", "dialog,act\n\"['a', 'b']\"\n", ["a.csv, line 2", "1 cells", "2 columns"]),
    ("a.csv", "dialog;act\n[];[]\n", ["a.csv, line 1", "separated by commas"]),
    ("a.tsv", "dialog,act\n[],[]\n", ["separated by tabs"]),
    ("a.csv", "dialogs,y\na,b\n", ["a.csv, line 2", "'dialogs', 'y'", "did you mean 'dialog'"]),
    ("a.csv", 'dialog\n"[\n', ["a.csv, line 2", "quotation mark"]),
    ("a.csv", "id,text,text\n1,a,b\n", ["'text' twice"]),
    ("a.csv", "dialog\n", ["a.csv: has no rows"]),
    ("a.csv", "", ["a.csv: has no rows"]),
    ("a.csv", "id,text\n1,a\n2,b\n1,c\n", ["a.csv, line 4", "dialogue '1' goes on"]),
    ("a.csv", "id,text\n1,a\n,b\n", ["a.csv, line 3", "dialogue id holds null"]),
    ("a.csv", "id,text\n1,a\n1,\n", ["a.csv, line 3", "'text' holds null"]),
    ("a.csv", "id,text,act\n1,a,1\n1,b,\n", ["a.csv, line 2", "act 2 is null"]),
    ("a.csv", "id,text,act\n1,a,nan\n", ["act 1 is 'nan'"]),
    ("a.csv", "id,text,act\n1,a,questoin\n", ["act 1 is 'questoin'", "did you mean 'question'"]),
    ("a.csv", b"id,text\n1,a\xff\n", ["a.csv, line 2", "0xff at column 4", "UTF-8"]),
    ("a.json", "{}", ["a.json: holds an object", ".jsonl"]),
    ("a.json", TALK * 2, ["a.json: is not JSON", ".jsonl"]),
    ("a.json", "[]", ["a.json: has no rows"]),
    ("a.json", " ", ["a.json: is empty"]),
    ("a.json", '[{"dialog": ["a"]}, 7]', ["a.json, row 2: holds a number"]),
    ("a.json", "[" * 100000, ["a.json: is not JSON"]),
    ("a.jsonl", '{"dialog": [' + "[" * 900 + "]" * 900 + "]}", ["turn 1", "a list"]),
    ("a.jsonl", '{"dialog": ["a"], "act": [' + "[" * 900 + "]" * 900 + "]}", ["act 1 is [["]),
    ("a.jsonl", '{"dialog": ["a", "\\ud800"]}', ["line 1", "half a character"]),
    ("a.jsonl", '{"dialog": ["a"], "act": [NaN, 1]}', ["act 1 is null"]),
    ("a.jsonl", '{"dialog": ["a"], "act": [2.5]}', ["act 1 is 2.5"]),
    ("a.jsonl", '{"dialog": ["a", "b"], "references": [["c"]]}', ["'references' holds 1 items", "2 turns"]),
    ("a.jsonl", '{"dialog": ["a", "b"], "references": [["c"], [1]]}', ["'references' of turn 2 holds a number"]),
    ("a.jsonl", '{"messages": [{"role": "tool", "content": "a"}]}', ["turn 1 has the role 'tool'"]),
    ("a.jsonl", '{"messages": [{"content": [{"type": "image_url"}]}]}', ["turn 1", "image_url", "'type': 'text'"]),
    ("a.jsonl", '{"messages": [{"role": "system", "content": null}]}', ["system message 1 holds null"]),
    ("a.jsonl", '{"messages": [{"role": "system", "content": "a"}]}', ["the dialogue has no turns"]),
    ("a.jsonl", '{"prompt": 7}', ["'prompt' holds a number"]),
    ("a.jsonl", '{"prompt": "a"}\n{"prompt": "b", "act": [1]}', ["line 2: 'act' is [1]"]),
    ("a.jsonl", '{"prompt": "a", "reference": " "}', ["line 1: 'reference' is empty"]),
    ("a.jsonl", '{"dialog": ["a", "b"], "act": 1}', ["line 1", "one act a row", "a list with one act per turn"]),
    ("a.parquet", b"PAR1 and no table", ["a.parquet: cannot be read as a parquet file", "damaged"]),
    ("a.parquet", b"", ["a.parquet: cannot be read as a parquet file"]),
    ("a.parquet", parquet_bytes(rows_of("train"))[:-90], ["a.parquet: cannot be read as a parquet file"]),
    ("a.parquet", parquet_bytes([{"dialog": ["a", None]}]), ["a.parquet, row 1: turn 2 of 2 holds null"]),
    ("a.parquet", parquet_bytes([{"dialog": [b"a"]}]), ["a.parquet, row 1: turn 1 of 1 holds bytes"]),
    ("a.parquet", parquet_bytes([{"text": "a"}]), ["a.parquet, row 1: no turns", "'text'"]),
    ("a.zip", b"PK and no archive", ["a.zip: cannot be read from a zip archive"]),
    ("a.zip", zipped({"train.jsonl": TALK})[:-20], ["a.zip: cannot be read from a zip archive"]),
    ("a.zip", zipped({"train.zip": b"no"}), ["a.zip/train.zip: cannot be read from a zip archive"]),
    ("a.zip", zipped({"train.zip": zipped({"train.zip": zipped({})})}), ["a.zip/train.zip: has no train split"]),
    ("a.zip", zipped({"train/dialogues_train.txt": HTML}), ["a.zip/train/dialogues_train.txt: is an HTML page"]),
    ("a.zip", zipped({"a/train.jsonl": TALK, "b/train.jsonl": TALK}), ["train split more than once"]),
    ("a.zip", zipped({"readme.txt": b"a"}), ["a.zip: has no train split, found readme.txt"]),
    *[
        (f"a.{kind}", HTML, ["is an HTML page", "went wrong"])
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
    ({"train.jsonl": TALK, "train.csv": "x"}, ["train split more than once: train.csv, train.jsonl"]),
    ({"val.jsonl": TALK}, ["has no train split, found val.jsonl"]),
    ({"train-00000-of-00002.jsonl": TALK}, ["1 parts", "train-00000-of-00002.jsonl", "gap"]),
    ({"train-00000-of-999999999.jsonl": TALK}, ["1 parts", "gap"]),
    ({"train_1.jsonl": TALK, "train_3.jsonl": TALK}, ["2 parts", "gap"]),
    ({"train.jsonl/x": TALK}, ["train.jsonl: cannot be read: Is a directory"]),
    ({"state.json": "{}"}, ["state.json: is not the state.json of a saved data set"]),
    ({"train/state.json": '{"_data_files": []}'}, ["train/state.json: names no files"]),
    ({"state.json": '{"_data_files": [{"filename": "../a.arrow"}]}', "a.arrow": "x"}, ["a.arrow: cannot be read as"]),
    ({"state.json": '{"_data_files": [{"filename": "b.arrow"}]}'}, ["b.arrow: is missing"]),
    ({"train/dialogues_train.txt": HTML}, ["dialogues_train.txt: is an HTML page"]),
]


@pytest.mark.parametrize(("files", "words"), FOLDER_ERRORS, ids=range(len(FOLDER_ERRORS)))
def test_errors_of_folders(tmp_path, files, words):
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        load_records(str(tmp_path), "train")
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
    with pytest.raises(UserError, match=r"train.jsonl: is encrypted"):
        load(tmp_path, "a.zip", encrypted)
    monkeypatch.setattr(trees, "MAX_BYTES", 100)
    with pytest.raises(UserError, match=r"train.jsonl: would have 1150 bytes"):
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


def test_the_files_further_up_are_taken(tmp_path):
    load(tmp_path, "data/train.csv", "prompt\nb\n")
    load(tmp_path, "train.jsonl", TALK)
    assert load_records(str(tmp_path), "train") == [DialogueRecord(["a", "b"])]


def test_system_messages_are_said_once(tmp_path, caplog):
    from rlhf_dialog.data.sources import messages

    messages._say_that_system_is_not_shown.cache_clear()
    row = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}]}
    for _ in range(2):
        load(tmp_path, "a.jsonl", jsonl_bytes([row, row]))
    assert caplog.text.count("the model does not see them") == 1


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
