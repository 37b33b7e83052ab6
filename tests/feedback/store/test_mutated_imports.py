"""Files to import that were damaged at random: they are imported, or a UserError says why."""

import json
import random
from contextlib import suppress

import pytest
from damage import cut, flip, forget, mistype

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats import own
from rlhf_dialog.feedback.store.imports import import_file
from rlhf_dialog.feedback.store.store import Store

MESSAGES = {
    "a": {"id": "a", "parentId": None, "childrenIds": ["b"], "role": "user", "content": "Hi"},
    "b": {"id": "b", "parentId": "a", "childrenIds": [], "role": "assistant", "content": "Yes"},
}
CHAT = {"chat": {"chat": {"history": {"currentId": "b", "messages": MESSAGES}}}}
OPEN_WEBUI = {
    "id": "f",
    "user_id": "u",
    "type": "rating",
    "data": {"rating": 1, "model_id": "m"},
    "meta": {"message_id": "b", "chat_id": "c"},
    "snapshot": CHAT,
    "created_at": 1,
    "updated_at": 2,
}
ARGILLA = {
    "id": "1",
    "fields": {"prompt": "Is it far ?", "response": "Yes ."},
    "responses": {"rating": [{"value": 4, "user_id": "u"}]},
    "metadata": {},
}
TRL = {"prompt": "Is it far ?", "completion": "Yes .", "label": True}


def our_row(folder):
    store = Store.create(folder / "ours.sqlite")
    dialogue = store.begin("ann", "terminal")
    store.add_turn(dialogue, 0, "user", "Is it far ?")
    answers = [store.add_turn(dialogue, 1, "agent", text) for text in ("Yes .", "No .")]
    store.add_feedback(dialogue, "thumb", "ann", turn=answers[0], value=1)
    store.add_feedback(dialogue, "choice", "bob", turn=answers[1], other=answers[0])
    (row,) = own.rows_of(store)
    store.close()
    return row


def mutated(rows, draw):
    """Bytes of the rows as JSON lines with one kind of damage."""
    rows = json.loads(json.dumps(rows))
    way = draw.choice([flip, cut, forget, mistype, mistype, mistype])
    if way in (forget, mistype):
        for _ in range(draw.randint(1, 3)):
            way(draw.choice(rows), draw)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return way(text, draw) if way in (flip, cut) else text


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["own", "trl", "argilla", "open_webui"])
def test_300_damaged_files_are_imported_or_say_what_is_wrong(kind, tmp_path):
    whole = {"own": our_row(tmp_path), "trl": TRL, "argilla": ARGILLA, "open_webui": OPEN_WEBUI}[kind]
    path, store, imported = tmp_path / "file.jsonl", Store.create(tmp_path / "feedback.sqlite"), 0
    path.write_text(json.dumps(whole) + "\n", encoding="utf-8")
    assert import_file(store, path).events > 0
    for seed in range(300):
        path.write_bytes(mutated([whole, whole], random.Random(seed)))
        with suppress(UserError):
            import_file(store, path)
            imported += 1
    assert imported < 200
    store.check()
    store.close()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ARGILLA | {"responses": {"rating": [{"value": 4, "user_id": {}}]}}, "is {}, not a text"),
        (OPEN_WEBUI | {"meta": {"message_id": {}, "chat_id": "c"}}, "unhashable"),
    ],
)
def test_what_cannot_be_stored_is_one_sentence(row, words, tmp_path):
    path, store = tmp_path / "file.jsonl", Store.create(tmp_path / "feedback.sqlite")
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=words):
        import_file(store, path)
    store.close()


@pytest.mark.parametrize(("place", "key", "value"), [("turns", "position", 10**30), ("turns", "created", float("nan"))])
def test_numbers_beyond_the_store_are_refused(place, key, value, tmp_path):
    row = our_row(tmp_path)
    row[place][0][key] = value
    path, store = tmp_path / "file.jsonl", Store.create(tmp_path / "feedback.sqlite")
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"damaged"):
        import_file(store, path)
    store.close()
