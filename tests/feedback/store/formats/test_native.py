"""The program's own JSONL."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats import native
from rlhf_dialog.feedback.store.store import Rating, Store, TurnOrigin


@pytest.fixture
def rows(tmp_path):
    store = Store.create(tmp_path / "feedback.sqlite")
    dialogue = store.begin("ann", "terminal")
    store.add_turn(dialogue, 0, "user", "Is it far ?")
    first = store.add_turn(dialogue, 1, "agent", "Yes .", TurnOrigin([1], [-0.5], {"top_k": 0}, "0001"))
    second = store.add_turn(dialogue, 1, "agent", "Two streets .")
    store.add_feedback(dialogue, "ann", Rating("thumb", turn=first, value=1))
    store.add_feedback(dialogue, "ann", Rating("thumb", turn=first, value=-1, text="short"))
    store.add_feedback(dialogue, "bob", Rating("choice", turn=second, other=first))
    yield native.export_rows(store)
    store.close()


def read(rows):
    return native.read([(f"line {number}", row) for number, row in enumerate(rows, 1)]).records


def test_it_has_everything_and_reads_it(rows):
    (row,) = json.loads(json.dumps(rows))
    assert native.is_native(row)
    assert row["turns"][1]["token_ids"] == [1]
    (record,) = read([row])
    assert [(turn.position, turn.text) for turn in record.turns] == [
        (0, "Is it far ?"),
        (1, "Yes ."),
        (1, "Two streets ."),
    ]
    assert [(one.kind, one.turn, one.other, one.value, one.text) for one in record.judgements] == [
        ("thumb", 1, None, 1, None),
        ("thumb", 1, None, -1, "short"),
        ("choice", 2, 1, None, None),
    ]
    assert (record.id, record.bot) == (row["dialogue"]["id"], row["bot"])
    assert [one.created for one in record.judgements] == [one["created"] for one in row["feedback"]]


def changed(row, place, key, value):
    part = row if place is None else row[place] if place == "dialogue" else row[place][1]
    part[key] = value
    return row


@pytest.mark.parametrize(
    ("place", "key", "value", "words"),
    [
        (None, "format_version", 2, "format version 2.*update"),
        (None, "colour", 1, "the line has the unknown keys 'colour'; known are format"),
        ("turns", "colour", 1, "turns has the unknown keys 'colour'"),
        ("feedback", "kind", "praise", "is damaged"),
        ("feedback", "turn", 99, "is damaged"),
        ("feedback", "value", 7, "is damaged"),
        ("feedback", "person", "ann", "is damaged"),
        ("turns", "speaker", "system", "is damaged"),
        ("turns", "text", 7, "is damaged"),
        ("dialogue", "id", "../../x", "is damaged"),
        ("dialogue", "started", "yesterday", "is damaged"),
        (None, "turns", None, "is damaged"),
    ],
)
def test_a_damaged_line_is_named(rows, place, key, value, words):
    with pytest.raises(UserError, match=f"line 1: .*{words}"):
        read([changed(json.loads(json.dumps(rows[0])), place, key, value)])
