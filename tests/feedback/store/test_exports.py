"""Exports, as text and as a folder that `datasets` opens."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store import exports
from rlhf_dialog.feedback.store.store import Rating, Store


@pytest.fixture
def store(tmp_path):
    found = Store.create(tmp_path / "feedback.sqlite")
    yield found
    found.close()


def test_what_counts_now_in_the_columns_of_trl(store):
    dialogue = store.begin("ann", "terminal")
    store.add_turn(dialogue, 0, "user", "Is it far ?")
    first = store.add_turn(dialogue, 1, "agent", "Yes .")
    second = store.add_turn(dialogue, 1, "agent", "Two streets .")
    store.add_feedback(dialogue, "ann", Rating("thumb", turn=first, value=1))
    store.add_feedback(dialogue, "ann", Rating("score", turn=second, value=3))
    assert exports.export_rows(store, "kto") == [{"prompt": "Is it far ?", "completion": "Yes .", "label": True}]
    store.add_feedback(dialogue, "ann", Rating("thumb", turn=first, value=-1))
    store.add_feedback(dialogue, "ann", Rating("choice", turn=second, other=first))
    store.add_feedback(dialogue, "ann", Rating("edit", turn=second, text="Two streets, on foot ."))
    assert exports.export_rows(store, "kto") == [{"prompt": "Is it far ?", "completion": "Yes .", "label": False}]
    assert exports.export_rows(store, "dpo") == [
        {"prompt": "Is it far ?", "chosen": "Two streets .", "rejected": "Yes ."},
        {"prompt": "Is it far ?", "chosen": "Two streets, on foot .", "rejected": "Two streets ."},
    ]


def test_files_and_folders(store, tmp_path):
    with pytest.raises(UserError, match="there are no dialogues to export"):
        exports.export_rows(store, "jsonl")
    rows = [{"prompt": "naïve ?", "completion": "Yes .", "label": True}]
    exports.write_jsonl(tmp_path / "x.jsonl", rows)
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()] == rows
    exports.write_folder(tmp_path / "folder", rows)
    from datasets import load_from_disk

    assert load_from_disk(tmp_path / "folder").to_list() == rows
