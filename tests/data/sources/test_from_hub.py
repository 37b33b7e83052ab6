"""The Hub, with a stand-in for `datasets.load_dataset`: which source is taken, its layouts, and what is said when none loads."""

import datasets
import pytest

from rlhf_dialog.data.sources import DialogueRecord, from_hub, load_records, load_rows
from rlhf_dialog.errors import MissingSplit, UserError
from tests.parts.data_files import error_of

ROWS = [{"dialog": ["Hi ", "Hey"], "act": [2, 1]}, {"dialog": ["a"], "act": [3]}]
RECORDS = [DialogueRecord(["Hi", "Hey"], [2, 1]), DialogueRecord(["a"], [3])]


@pytest.fixture
def hub(monkeypatch):
    """A Hub of the test's own: `hub.rows[name]` are rows or an error; `hub.calls` is what was asked of it."""

    class Hub:
        def __init__(self):
            self.rows, self.calls, self.reachable = {}, [], True

        def load_dataset(self, name, split, revision):
            self.calls.append((name, split, revision, datasets.config.HF_HUB_OFFLINE))
            rows = self.rows.get(name, ConnectionError("no such thing"))
            if isinstance(rows, Exception):
                raise rows
            return datasets.Dataset.from_list(rows)

    fake = Hub()
    monkeypatch.setattr(datasets, "load_dataset", fake.load_dataset)
    monkeypatch.setattr(from_hub, "hub_reachable", lambda: fake.reachable)
    return fake


def test_a_name_is_loaded_as_it_is_and_daily_dialog_from_its_parquet_files(hub):
    """Without a connection from the cache alone."""
    hub.rows = {"somebody/talk": ROWS, "li2017dailydialog/daily_dialog": ROWS}
    assert load_records("somebody/talk", "validation") == RECORDS
    assert load_rows("somebody/talk", "train")[1] == ("somebody/talk, train, row 2", ROWS[1])
    hub.reachable = False
    assert load_records("daily_dialog", "train") == RECORDS
    assert hub.calls[0] == ("somebody/talk", "validation", None, False)
    assert hub.calls[2] == ("li2017dailydialog/daily_dialog", "train", "refs/convert/parquet", True)


def test_what_was_tried_is_said_when_nothing_loads(hub):
    hub.rows = {"x/y": RuntimeError("Dataset scripts\nare no longer"), "x/z": [{"dialog": ["a", "b"], "act": [1, 9]}]}
    words = ("no such file or folder", "x/y: RuntimeError: Dataset scripts are no longer", "dialogues_train.txt")
    assert all(word in error_of("x/y") for word in words)
    assert "x/z, train, row 1: act 2 is 9" in error_of("x/z")
    assert "did you mean 'daily_dialog'" in error_of("DailyDialog")
    assert "did you mean" not in error_of("daily_dialog")


def test_a_split_that_the_hub_does_not_have_and_the_key_that_names_it(hub):
    hub.rows = {
        "x/y": ValueError("Unknown split \"train\". Should be one of ['test_sft', 'train_sft']."),
        "x/z": ValueError(),
    }
    with pytest.raises(MissingSplit) as caught:
        load_records("x/y", "train")
    words = ("there is no train split on the Hub", "'test_sft', 'train_sft'", "split: {train: train_sft}")
    assert all(word in str(caught.value) for word in words)
    with pytest.raises(UserError, match=r"split\.train: .* has no split 'train_stf'(.|\n)*did you mean 'train_sft'"):
        load_records("x/y", "train", names={"train": "train_stf"})
    with pytest.raises(UserError) as other:
        load_records("x/z", "train")
    assert not isinstance(other.value, MissingSplit)
    hub.rows = {"x/y": ROWS}
    assert load_records("x/y", "train", names={"train": "train_sft"}) == RECORDS
    assert hub.calls[-1][:2] == ("x/y", "train_sft")


def test_a_path_that_does_not_exist_never_asks_the_hub(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    paths = ("./talk", "../x", "/nowhere/x", "~/nowhere/x", "talk.jsonl", "talk.csv", "talk.ZIP", "data/talk", "a/b/c")
    for path in paths:
        assert f"'{path}': no such file or folder" in error_of(path)
    assert hub.calls == []


def test_offline_fails_fast_and_asks_the_cache_only(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    before = datasets.config.HF_HUB_OFFLINE
    message = error_of("daily_dialog")
    assert "the Hub cannot be reached" in message
    assert message.count("Couldn't reach") == 1
    assert datasets.config.HF_HUB_OFFLINE is before
