"""The Hub, with a stand-in for `datasets.load_dataset`: which source is taken, its layouts, and what is said when none loads."""

import logging
import time

import datasets
import pytest

from rlhf_dialog.data.sources import DialogueRecord, from_hub, load_records, load_rows
from rlhf_dialog.errors import MissingSplit, UserError
from tests.parts.data_files import error_of


@pytest.fixture
def hub(monkeypatch):
    """A Hub of the test's own: `hub.rows[name]` are rows or an error; `hub.calls` is what was asked of it."""

    class Hub:
        def __init__(self):
            self.rows, self.calls, self.offline = {}, [], []

        def load_dataset(self, name, split, revision):
            self.calls.append((name, split, revision))
            self.offline.append(datasets.config.HF_HUB_OFFLINE)
            rows = self.rows.get(name, ConnectionError("no such thing"))
            if isinstance(rows, Exception):
                raise rows
            return datasets.Dataset.from_list(rows)

    fake = Hub()
    monkeypatch.setattr(datasets, "load_dataset", fake.load_dataset)
    monkeypatch.setattr(from_hub, "hub_reachable", lambda: True)
    return fake


ROWS = [{"dialog": ["Hi ", "Hey"], "act": [2, 1]}, {"dialog": ["a"], "act": [3]}]
RECORDS = [DialogueRecord(["Hi", "Hey"], [2, 1]), DialogueRecord(["a"], [3])]


def test_daily_dialog_is_taken_from_its_parquet_files(hub, caplog):
    hub.rows = {"li2017dailydialog/daily_dialog": ROWS}
    with caplog.at_level(logging.INFO, logger="rlhf_dialog"):
        assert load_records("daily_dialog", "train") == RECORDS
    assert hub.calls == [("li2017dailydialog/daily_dialog", "train", "refs/convert/parquet")]
    assert hub.offline == [False]
    assert "2 train rows from li2017dailydialog/daily_dialog" in caplog.text


def test_rows_of_any_columns(hub):
    hub.rows = {"somebody/pairs": [{"chosen": "a", "rejected": "b"}]}
    assert load_rows("somebody/pairs", "train") == [("somebody/pairs, train, row 1", {"chosen": "a", "rejected": "b"})]


def test_another_name_is_loaded_as_it_is(hub):
    hub.rows = {"somebody/talk": ROWS}
    assert load_records("somebody/talk", "validation") == RECORDS
    assert hub.calls == [("somebody/talk", "validation", None)]


def test_what_was_tried_is_said_when_nothing_loads(hub):
    hub.rows = {"x/y": RuntimeError("Dataset scripts\nare no longer"), "x/z": [{"dialog": ["a", "b"], "act": [1, 9]}]}
    words = ("no such file or folder", "x/y: RuntimeError: Dataset scripts are no longer", "dialogues_train.txt")
    assert all(word in error_of("x/y") for word in words)
    assert "x/z, train, row 1: act 2 is 9" in error_of("x/z")
    assert "did you mean 'daily_dialog'" in error_of("DailyDialog")
    assert "did you mean" not in error_of("daily_dialog")


def test_a_split_that_the_hub_does_not_have(hub):
    hub.rows = {"x/y": ValueError("Unknown split \"validation\". Should be one of ['train']."), "x/z": ValueError("no")}
    with pytest.raises(MissingSplit, match=r"there is no validation split on the Hub:\n.*\['train'\]"):
        load_records("x/y", "validation")
    with pytest.raises(UserError) as caught:
        load_records("x/z", "validation")
    assert not isinstance(caught.value, MissingSplit)


def test_a_key_names_the_splits_on_the_hub_and_without_it_the_error_names_both(hub):
    hub.rows = {"x/y": ValueError("Unknown split \"train\". Should be one of ['test_sft', 'train_sft'].")}
    with pytest.raises(MissingSplit) as caught:
        load_records("x/y", "train")
    assert all(word in str(caught.value) for word in ("'test_sft', 'train_sft'", "split: {train: train_sft}"))
    with pytest.raises(UserError, match=r"split\.train: .* has no split 'train_stf'(.|\n)*did you mean 'train_sft'"):
        load_records("x/y", "train", names={"train": "train_stf"})
    hub.rows = {"x/y": ROWS}
    assert load_records("x/y", "train", names={"train": "train_sft"}) == RECORDS
    assert hub.calls[-1] == ("x/y", "train_sft", None)


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
        assert f"'{path}': no such file or folder" in message
    assert hub.calls == []


def test_offline_fails_fast_and_asks_the_cache_only(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    before = datasets.config.HF_HUB_OFFLINE
    start = time.monotonic()
    message = error_of("daily_dialog")
    assert time.monotonic() - start < 60
    assert "the Hub cannot be reached" in message
    assert message.count("Couldn't reach") == 1
    assert datasets.config.HF_HUB_OFFLINE is before


def test_unreachable_hub_still_loads_from_the_cache(hub, monkeypatch):
    monkeypatch.setattr(from_hub, "hub_reachable", lambda: False)
    hub.rows = {"x/y": ROWS}
    assert load_records("x/y", "train") == RECORDS
    assert hub.offline == [True]
