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


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER x AFTER INSERT ON feedback BEGIN UPDATE turns SET text = '' WHERE id = new.turn; END",
        "CREATE TRIGGER turns_keep AFTER INSERT ON turns BEGIN SELECT 1; END",
        "CREATE TABLE x (y)",
        "CREATE VIEW x AS SELECT * FROM turns",
        "CREATE INDEX x ON turns (text)",
        "CREATE VIRTUAL TABLE x USING fts5(y)",
    ],
)
def test_a_store_with_more_parts_than_ours_is_refused(path, statement):
    with closing(sqlite3.connect(path)) as plain:
        plain.execute(statement)
    refused(path, r"has the (trigger|table|view|index) '(x|turns_keep)")


def test_statistics_of_sqlite_are_no_other_part(path):
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("ANALYZE")
    Store(path).close()


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        *(("dialogues", column, b"x") for column in ("id", "started", "person", "source", "heldout")),
        *(("turns", column, b"x") for column in ("position", "text", "version")),
        *(("feedback", column, b"x") for column in ("kind", "value", "text", "person")),
        *(("dialogues", column, "x") for column in ("started", "heldout")),
        *[("dialogues", "id", None), ("turns", "position", "x"), ("turns", "created", "x"), ("feedback", "turn", "x")],
        *[("feedback", "value", "x"), ("feedback", "other", "x"), ("meta", "value", b"x"), ("turns", "position", 0.5)],
    ],
)
def test_a_value_of_another_type_is_named(path, table, column, value):
    rows = {
        "meta": {"key": "k", "value": "v"},
        "dialogues": {"id": "d", "started": 1.0, "person": "p", "source": "page", "heldout": 0},
        "turns": {"dialogue": "d", "position": 0, "speaker": "user", "text": "Hi", "created": 1.0},
        "feedback": {"dialogue": "d", "kind": "thumb", "value": 1, "person": "p", "created": 1.0},
    }
    row = {**rows[table], column: value}
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute(
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values())
        )
    refused(path, rf"row \d+ of {table} .* column {column}; put a backup in its place")


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
