"""The file of the store: what cannot be opened says why, and an older one becomes one of today."""

import sqlite3
from contextlib import closing

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback import schema
from rlhf_dialog.feedback.store import Store


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


def test_a_store_is_not_made_twice(path):
    with pytest.raises(UserError, match="exists already"):
        Store.create(path)


def test_what_is_not_a_store(tmp_path, path):
    refused(tmp_path / "absent.sqlite", "no store of feedback")
    (tmp_path / "text").write_text("not a database, but some text\n" * 50)
    refused(tmp_path / "text", "not an SQLite file")
    (tmp_path / "empty").touch()
    refused(tmp_path / "empty", "is an SQLite file, but not a store of feedback")
    with closing(sqlite3.connect(tmp_path / "other")) as other:
        other.execute("CREATE TABLE songs (name)")
    refused(tmp_path / "other", "is an SQLite file, but not a store of feedback")


def test_a_newer_schema(path):
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("PRAGMA user_version=2")
    refused(path, "schema version 2, but this program knows versions up to 1; update rlhf-dialog")
