"""The file of the store: what cannot be opened says why, and an older one becomes one of today."""

import hashlib
import json
import os
import signal
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store import schema
from rlhf_dialog.feedback.store.examples import read_examples
from rlhf_dialog.feedback.store.formats import native
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
        **{"secure_delete": 1, "user_version": 2, "busy_timeout": 5000},
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
        plain.execute("PRAGMA user_version=3")
    refused(path, "schema version 3, but this program knows versions up to 2; update")
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
        *((table, column, b"x") for table in ("users", "chats") for column in ("dialogue", "hash")),
        *[("answers", "id", b"x"), ("answers", "turn", "x"), ("messages", "hash", b"x"), ("systems", "text", b"x")],
        *((("requests", column, b"x")) for column in ("hash", "body", "answer", "created")),
        *[("pulled", "hash", b"x"), ("pulled", "event", "x")],
        *[("feedback", "value", "x"), ("feedback", "other", "x"), ("meta", "value", b"x"), ("turns", "position", 0.5)],
    ],
)
def test_a_value_of_another_type_is_named(path, table, column, value):
    rows = {
        "meta": {"key": "k", "value": "v"},
        "dialogues": {"id": "d", "started": 1.0, "person": "p", "source": "page", "heldout": 0},
        "turns": {"dialogue": "d", "position": 0, "speaker": "user", "text": "Hi", "created": 1.0},
        "feedback": {"dialogue": "d", "kind": "thumb", "value": 1, "person": "p", "created": 1.0},
        "answers": {"id": "a", "turn": 1},
        "messages": {"turn": 1, "hash": "h"},
        "systems": {"dialogue": "d", "text": "Be brief ."},
        "requests": {"hash": "h", "body": "b", "answer": "a", "created": 1.0},
        "pulled": {"hash": "h", "event": 1},
        "users": {"dialogue": "d", "hash": "h"},
        "chats": {"dialogue": "d", "hash": "h"},
    }
    row = {**rows[table], column: value}
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute(
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values())
        )
    refused(path, rf"row \d+ of {table} .* column {column}; put a backup in its place")


@pytest.fixture
def old(tmp_path):
    """A store of schema version 1."""
    path = tmp_path / "old.sqlite"
    with closing(sqlite3.connect(path)) as plain:
        plain.executescript((Path(__file__).parent / "stores" / "version_1.sql").read_text(encoding="utf-8"))
        plain.execute("PRAGMA journal_mode=WAL")
    return path


def dump(path):
    """The version of a file, its tables of version 1 as SQL, and the names of all tables."""
    with closing(sqlite3.connect(path)) as plain:
        version = plain.execute("PRAGMA user_version").fetchone()[0]
        tables = {name for (name,) in plain.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        rows = {table: plain.execute(f"SELECT * FROM {table}").fetchall() for table in sorted(OLD)}
    return version, rows, tables - OLD - {"sqlite_sequence"}


OLD = {"meta", "dialogues", "turns", "feedback"}
NEW = {"answers", "stopped", "copies", "systems", "users", "chats", "messages", "requests", "pulled"}


def test_a_stored_file_of_every_version_opens(old):
    store = Store(old, "feedfeedfeedfeedfeedfeedfeedfeed")
    (dialogue,) = store.dialogues()
    assert (dialogue.person, dialogue.heldout) == (store.hash_person("ann"), is_heldout(dialogue.id))
    assert [turn.text for turn in store.turns(dialogue.id)] == ["Is it far ?", "Yes .", "Two streets ."]
    assert [(event.kind, event.value) for event in store.feedback()] == [("thumb", -1), ("choice", None)]
    assert store.turns(dialogue.id)[1].logprobs == [-0.5, -1.25]
    store.close()


def test_an_older_store_gets_the_tables_of_today_after_a_copy(old, caplog):
    version, rows, _ = dump(old)
    Store(old).close()
    assert (version, dump(old)) == (1, (2, rows, NEW))
    copy = old.with_name("old.version-1.sqlite")
    assert dump(copy) == (1, rows, set())
    assert copy.stat().st_mode & 0o777 == 0o600
    assert str(copy) in caplog.text
    caplog.clear()
    copy.unlink()
    Store(old).close()
    assert (caplog.text, copy.exists()) == ("", False)  # it is done once
    with closing(sqlite3.connect(old)) as plain, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        plain.executescript("INSERT INTO copies VALUES (1); UPDATE copies SET turn = 2")
    created = {
        (path, one) for path in (old, Store.create(old.with_name("new.sqlite")).path) for one in statements(path)
    }
    assert {one for path, one in created if path == old} == {one for path, one in created if path != old}


def test_the_examples_of_an_older_store_are_what_the_older_program_read(old):
    examples = read_examples(Store(old))
    assert repr(examples.all) == (  # by the program of then
        "[RatedAnswer(prompt_turns=('Is it far ?',), response='Yes .', liked=False, kind='thumb', person='7438409329663c47', "
        "dialogue='0123456789abcdef0123456789abcdef', event=2, ids=(5, 6), heldout=False, owner=None), "
        "AnswerPair(prompt_turns=('Is it far ?',), chosen='Two streets .', rejected='Yes .', kind='choice', "
        "person='53591147d9c1e505', dialogue='0123456789abcdef0123456789abcdef', event=3, chosen_ids=(7,), "
        "rejected_ids=(5, 6), heldout=False, owner='7438409329663c47')]"
    )
    assert examples.left_out == {}
    written = json.dumps(native.export_rows(Store(old)))
    assert hashlib.sha256(written.encode()).hexdigest().startswith("e0ef83667fa93ff3")  # of its export


def statements(path):
    with closing(sqlite3.connect(path)) as plain:
        return {sql for (sql,) in plain.execute("SELECT sql FROM sqlite_master")}


def test_an_older_store_that_is_damaged_or_has_other_parts_stays_as_it_is(old):
    for statement in ("CREATE TABLE answers (x)", schema.CREATE_2[0]):
        with closing(sqlite3.connect(old)) as plain, plain:
            plain.execute("DROP TABLE IF EXISTS answers")
            plain.execute(statement)
        refused(old, "has the table 'answers'")
    with closing(sqlite3.connect(old)) as plain, plain:
        plain.execute("DROP TABLE answers")
        plain.execute("INSERT INTO feedback VALUES (NULL, '0', NULL, 'thumb', 'x', NULL, NULL, 'p', 1)")
    refused(old, "of another type in the column value")
    assert (dump(old)[0], old.with_name("old.version-1.sqlite").exists()) == (1, False)


@pytest.mark.parametrize("step", [40, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_leaves_a_store_of_one_version_or_the_other(old, step):
    content, (_, rows, _) = old.read_bytes(), dump(old)
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "connect", traced(lambda: seen.append(1)))
        Store(old).close()
    found = []
    for number in sorted({*range(step, len(seen), step), len(seen) - 1, len(seen)}):
        for name in ("old.sqlite-wal", "old.sqlite-shm", "old.version-1.sqlite"):
            old.with_name(name).unlink(missing_ok=True)
        old.write_bytes(content)
        if (child := os.fork()) == 0:
            schema.connect = traced(killed_at(number))
            Store(old)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        version, kept, tables = dump(old)
        assert (kept, tables) == (rows, NEW if version == 2 else set())
        Store(old).close()
        assert dump(old) == (2, rows, NEW)
        found.append(version)
    assert found == [*[1] * (len(found) - 1), 2]  # the last statement comes after the transaction


def killed_at(number):
    """To be called: the call of this number kills the process."""
    left = iter(range(1, number))
    return lambda: next(left, None) or os.kill(os.getpid(), signal.SIGKILL)


def traced(act):
    """`schema.connect`, whose connections call `act` before each statement."""
    real = schema.connect

    def connect(path):
        connection = real(path)
        connection.set_trace_callback(lambda _: act())
        return connection

    return connect


def test_two_programs_at_once_add_the_tables_once(old, monkeypatch):
    check, both = schema._check_types, threading.Barrier(2)

    def checked(*arguments):
        both.wait()  # until both know that the store is an old one
        check(*arguments)

    monkeypatch.setattr(schema, "_check_types", checked)
    with ThreadPoolExecutor() as threads:
        stores = [threads.submit(Store, old) for _ in range(2)]
    assert {one.result().bot for one in stores} == {"feedfeedfeedfeedfeedfeedfeedfeed"}
    assert [dump(path)[0] for path in (old, old.with_name("old.version-1.sqlite"))] == [2, 1]
    assert not old.with_name("old.version-2.sqlite").exists()
