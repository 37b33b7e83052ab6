"""The file of the store: what cannot be opened says why, and an older one becomes one of today."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store import schema
from rlhf_dialog.feedback.store.store import Store, is_heldout


@pytest.fixture
def path(tmp_path):
    Store.create(tmp_path / "feedback.sqlite").close()
    return tmp_path / "feedback.sqlite"


def refused(path, words):
    with pytest.raises(UserError, match=words) as caught:
        Store(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_its_settings(path):
    with closing(schema.connect(path)) as connection:
        found = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "foreign_keys", "secure_delete", "user_version", "busy_timeout")
        }
    assert found == {
        **{"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1},  # 2 is FULL
        **{"secure_delete": 1, "user_version": 1, "busy_timeout": 5000},
    }
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match="exists already"):
        Store.create(path)


def test_what_is_not_a_store_or_a_newer_one(tmp_path, path):
    refused(tmp_path / "absent.sqlite", "no store of feedback")
    (tmp_path / "text").write_text("not a database, but some text\n" * 50)
    refused(tmp_path / "text", "not a database; put a backup in its place")
    (tmp_path / "empty").touch()
    refused(tmp_path / "empty", "is not a store of feedback")
    with closing(sqlite3.connect(tmp_path / "other")) as other:
        other.execute("CREATE TABLE songs (name)")
    refused(tmp_path / "other", "is not a store of feedback")
    content = path.read_bytes()
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("PRAGMA user_version=2")
    refused(path, "schema version 2, but this program knows versions up to 1; update")
    for damaged in (content[:100] + b"\xff" * 300 + content[400:], content[:4096], content[:5000]):
        path.write_bytes(damaged)
        refused(path, "put a backup in its place")
    path.write_bytes(content)
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute("DROP TRIGGER meta_keeps")
        plain.execute("DELETE FROM meta WHERE key = 'salt'")
    refused(path, "no bot or no salt")


def test_a_stored_file_of_every_version_opens(tmp_path):
    with closing(sqlite3.connect(tmp_path / "old.sqlite")) as plain:
        plain.executescript((Path(__file__).parent / "stores" / "version_1.sql").read_text(encoding="utf-8"))
    store = Store(tmp_path / "old.sqlite", "feedfeedfeedfeedfeedfeedfeedfeed")
    (dialogue,) = store.dialogues()
    assert (dialogue.person, dialogue.heldout) == (store.hash_person("ann"), is_heldout(dialogue.id))
    assert [turn.text for turn in store.turns(dialogue.id)] == ["Is it far ?", "Yes .", "Two streets ."]
    assert [(event.kind, event.value) for event in store.feedback()] == [("thumb", -1), ("choice", None)]
    assert store.turns(dialogue.id)[1].logprobs == [-0.5, -1.25]
    store.close()
