"""Stores into which SQL wrote other types: they are read, or a UserError says why."""

import shutil
import sqlite3
from contextlib import closing, suppress

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats import own
from rlhf_dialog.feedback.store.store import Store

VALUES = (-1, 2.5, 2**62, 1e308, "", "x", "[1,", "[null]", "[" * 10**5, b"\xff\xfe")
COLUMNS = {
    "dialogues": ("id", "started", "person", "source", "heldout"),
    "turns": ("position", "text", "token_ids", "logprobs", "sampling", "version", "created"),
    "feedback": ("turn", "kind", "value", "text", "other", "person", "created"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "feedback.sqlite"
    store = Store.create(path)
    dialogue = store.begin("ann", "terminal")
    store.add_turn(dialogue, 0, "user", "Is it far ?")
    answer = store.add_turn(dialogue, 1, "agent", "Yes .", token_ids=[1], logprobs=[-0.5], sampling={}, version="0001")
    store.add_feedback(dialogue, "thumb", "ann", turn=answer, value=1)
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.commit()
    return path


def changed(whole, path, table, column, value):
    shutil.copy(whole, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
        connection.commit()
    return path


def everything(path):
    with closing(Store(path)) as store:
        return [store.people(), store.feedback(), own.rows_of(store), store.last_event()]


@pytest.mark.parametrize("table", list(COLUMNS))
def test_a_store_edited_by_sql_is_read_or_says_what_is_wrong(whole, tmp_path, table):
    for column in COLUMNS[table]:
        for number, value in enumerate(VALUES):
            with suppress(UserError):
                everything(changed(whole, tmp_path / f"{column}{number}.sqlite", table, column, value))


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("dialogues", "person", b"\xff"),
        ("dialogues", "started", "x"),
        ("feedback", "value", "x"),
        ("turns", "created", ""),
    ],
)
def test_another_type_is_one_sentence(whole, tmp_path, table, column, value):
    path = changed(whole, tmp_path / "edited.sqlite", table, column, value)
    with pytest.raises(UserError, match=f"edited.sqlite: is damaged: .* as {column}; put a backup in its place"):
        everything(path)
