"""Reading: the original layout, JSONL, and the Hub with a stand-in for `datasets.load_dataset`."""

import json
import logging
import time

import datasets
import pytest
from tiny import dialogues, write_data

from rlhf_dialog.data.sources import DialogueRecord, from_hub, load_records
from rlhf_dialog.errors import MissingSplit, UserError


def write_split(folder, text, acts=None, split="train"):
    (folder / split).mkdir(parents=True)
    encoded = text if isinstance(text, bytes) else text.encode()
    (folder / split / f"dialogues_{split}.txt").write_bytes(encoded)
    if acts is not None:
        (folder / split / f"dialogues_act_{split}.txt").write_bytes(acts.encode())
    return str(folder)


def error_of(data_path, split="train"):
    with pytest.raises(UserError) as caught:
        load_records(str(data_path), split)
    return str(caught.value)


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


@pytest.fixture
def hub(monkeypatch):
    """A Hub of the test's own: `hub.rows[name]` are rows or an error; `hub.calls` is what was asked of it."""

    class Hub:
        def __init__(self):
            self.rows, self.calls, self.offline = {}, [], []

        def load_dataset(self, name, split, **arguments):
            self.calls.append((name, split, arguments))
            self.offline.append(datasets.config.HF_HUB_OFFLINE)
            rows = self.rows.get(name, ConnectionError("no such thing"))
            if isinstance(rows, Exception):
                raise rows
            return datasets.Dataset.from_list(rows)

    fake = Hub()
    monkeypatch.setattr(datasets, "load_dataset", fake.load_dataset)
    monkeypatch.setattr(from_hub, "hub_reachable", lambda: True)
    return fake


PARQUET = ("li2017dailydialog/daily_dialog", "train", {"revision": "refs/convert/parquet"})
OPENRL = ("OpenRL/daily_dialog", "train", {})
DEEPPAVLOV = ("DeepPavlov/daily_dialog", "train", {})
ROWS = [{"dialog": ["Hi ", "Hey"], "act": [2, 1]}, {"dialog": ["a"], "act": [3]}]
RECORDS = [DialogueRecord(["Hi", "Hey"], [2, 1]), DialogueRecord(["a"], [3])]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_daily_dialog_takes_the_first_source_that_loads_and_says_which(hub, caplog, position):
    order = [PARQUET, OPENRL, DEEPPAVLOV]
    hub.rows = {name: ROWS for name, _, _ in order[position:]}
    with caplog.at_level(logging.INFO, logger="rlhf_dialog"):
        assert load_records("daily_dialog", "train") == RECORDS
    assert hub.calls == order[: position + 1]
    assert hub.offline == [False] * (position + 1)
    assert f"from {order[position][0]}" in caplog.text


def test_a_source_with_unknown_columns_is_passed_over(hub):
    hub.rows = {PARQUET[0]: [{"page": 1}], OPENRL[0]: ROWS}
    assert load_records("daily_dialog", "train") == RECORDS


def test_another_name_is_loaded_as_it_is(hub):
    hub.rows = {"somebody/talk": ROWS}
    assert load_records("somebody/talk", "validation") == RECORDS
    assert hub.calls == [("somebody/talk", "validation", {})]


@pytest.mark.parametrize(
    "rows",
    [
        [
            {"dialog_id": 4, "utterance": "Hi", "act_label": 2},
            {"dialog_id": 4, "utterance": "Hey", "act_label": 1},
            {"dialog_id": 5, "utterance": "a", "act_label": 3},
        ],
        [
            {"dialogue_id": "x", "dialog": "Hi", "act": "question"},
            {"dialogue_id": "x", "dialog": "Hey", "act": "Inform"},
            {"dialogue_id": "y", "dialog": "a", "act": "directive"},
        ],
        [
            {"dialog": ["Hi"], "act_label": 2},
            {"dialog": ["Hi", "Hey"], "act_label": 1},
            {"dialog": ["a"], "act_label": 3},
        ],
        [
            {"dialog": ["Hi"], "act_label": 1, "act_label_text": "question"},
            {"dialog": ["Hi", "Hey"], "act_label": 0, "act_label_text": "inform"},
            {"dialog": ["a"], "act_label": 2, "act_label_text": "directive"},
        ],
        [
            {"turns": [{"utterance": "Hi"}, {"utterance": "Hey"}], "acts": [2, 1]},
            {"turns": [{"utterance": "a"}], "acts": [3]},
        ],
    ],
    ids=["row per utterance", "named acts", "growing rows", "growing rows with named acts", "turns as objects"],
)
def test_hub_layouts(hub, rows):
    hub.rows = {"DeepPavlov/daily_dialog": rows}
    assert load_records("daily_dialog", "train") == RECORDS


def test_hub_rows_without_acts(hub):
    hub.rows = {
        "x/y": [{"dialog": ["Hi", "Hey"]}],
        "x/z": [{"dialog_id": 1, "text": "Hi"}, {"dialog_id": 1, "text": "Hey"}],
    }
    for name in hub.rows:
        assert load_records(name, "train") == [DialogueRecord(["Hi", "Hey"], None)]


def test_growing_rows_out_of_order_are_refused(hub):
    hub.rows = {"x/y": [{"dialog": ["a"], "act": 1}, {"dialog": ["b", "c"], "act": 1}]}
    assert "x/y, train, row 2" in error_of("x/y")


def test_what_was_tried_is_said_when_nothing_loads(hub):
    hub.rows = {
        PARQUET[0]: ValueError("Unknown split"),
        OPENRL[0]: RuntimeError("Dataset scripts\nare no longer"),
        DEEPPAVLOV[0]: [{"dialog": ["a", "b"], "act": [1, 9]}],
    }
    message = error_of("daily_dialog")
    for words in (
        "no such file or folder",
        "li2017dailydialog/daily_dialog: ValueError: Unknown split",
        "OpenRL/daily_dialog: RuntimeError: Dataset scripts are no longer",
        "DeepPavlov/daily_dialog, train, row 1: act 2 is 9",
        "dialogues_train.txt",
    ):
        assert words in message
    assert "did you mean 'daily_dialog'" in error_of("DailyDialog")


def test_a_split_that_the_hub_does_not_have(hub):
    hub.rows = {"x/y": ValueError("Unknown split \"validation\". Should be one of ['train']."), "x/z": ValueError("no")}
    with pytest.raises(MissingSplit, match=r"has no validation split on the Hub:\n.*\['train'\]"):
        load_records("x/y", "validation")
    with pytest.raises(UserError) as caught:
        load_records("x/z", "validation")
    assert not isinstance(caught.value, MissingSplit)


def test_a_path_that_does_not_exist_never_asks_the_hub(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for path in (
        "./talk",
        "../x",
        "/nowhere/x",
        "~/nowhere/x",
        "talk.jsonl",
        "talk.csv",
        "talk.ZIP",
        "data/talk",
        "some/deep/folder",
    ):
        message = error_of(path)
        assert f"'{path}': there is no such file or folder" in message
    assert hub.calls == []


def test_offline_fails_fast_and_asks_the_cache_only(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    before = datasets.config.HF_HUB_OFFLINE
    start = time.monotonic()
    message = error_of("daily_dialog")
    assert time.monotonic() - start < 60
    assert "the Hub cannot be reached" in message
    assert message.count("Couldn't reach") == 3
    assert datasets.config.HF_HUB_OFFLINE is before


def test_unreachable_hub_still_loads_from_the_cache(hub, monkeypatch):
    monkeypatch.setattr(from_hub, "hub_reachable", lambda: False)
    hub.rows = {OPENRL[0]: ROWS}
    assert load_records("daily_dialog", "train") == RECORDS
    assert hub.offline == [True, True]
