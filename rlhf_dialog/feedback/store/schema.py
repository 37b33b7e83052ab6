"""The tables of the store, and what SQLite's errors mean."""

import random
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rlhf_dialog.atomic_files import atomic_file
from rlhf_dialog.errors import UserError

SCHEMA_VERSION = 1
BUSY_TIMEOUT = 5.0  # seconds that a connection waits for another one's transaction
LOOKS = (0.0005, 0.003)  # seconds between two looks whether the file is free, drawn
_DRAW = random.Random()  # not the generator that training restores
TABLES = ("meta", "dialogues", "turns", "feedback")
CREATE = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE dialogues (
        id TEXT PRIMARY KEY, started REAL NOT NULL, person TEXT NOT NULL, source TEXT NOT NULL, heldout INTEGER NOT NULL)""",
    """CREATE TABLE turns (
        id INTEGER PRIMARY KEY AUTOINCREMENT, dialogue TEXT NOT NULL REFERENCES dialogues, position INTEGER NOT NULL,
        speaker TEXT NOT NULL CHECK (speaker IN ('user', 'agent')), text TEXT NOT NULL,
        token_ids TEXT, logprobs TEXT, sampling TEXT, version TEXT, created REAL NOT NULL)""",
    """CREATE TABLE feedback (
        id INTEGER PRIMARY KEY AUTOINCREMENT, dialogue TEXT NOT NULL REFERENCES dialogues, turn INTEGER REFERENCES turns,
        kind TEXT NOT NULL, value REAL, text TEXT, other INTEGER REFERENCES turns, person TEXT NOT NULL,
        created REAL NOT NULL)""",
    "CREATE INDEX dialogues_person ON dialogues (person)",
    "CREATE INDEX turns_dialogue ON turns (dialogue, position)",
    "CREATE INDEX feedback_dialogue ON feedback (dialogue)",
    "CREATE INDEX feedback_turn ON feedback (turn)",
    "CREATE INDEX feedback_other ON feedback (other)",
    "CREATE INDEX feedback_person ON feedback (person)",
)
DELETE_TRIGGERS = {
    f"{table}_keeps": f"CREATE TRIGGER {table}_keeps BEFORE DELETE ON {table} "
    "BEGIN SELECT RAISE(ABORT, 'the store is append-only: nothing is deleted but by forget'); END"
    for table in TABLES
}
UPDATE_TRIGGERS = tuple(
    f"CREATE TRIGGER {table}_stays BEFORE UPDATE ON {table} "
    "BEGIN SELECT RAISE(ABORT, 'the store is append-only: nothing is updated'); END"
    for table in TABLES
)
NUMBERS = {"started", "heldout", "position", "created", "turn", "other"}  # columns


class Connection(sqlite3.Connection):
    """A connection that can be referred to weakly."""


def connect(path: Path) -> Connection:
    """A connection to an existing file with the store's settings; transactions are begun explicitly."""
    uri = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(
        uri, BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, factory=Connection, uri=True
    )
    try:
        connection.row_factory = sqlite3.Row
        for pragma in ("foreign_keys=ON", "synchronous=FULL", "secure_delete=ON", "trusted_schema=OFF"):
            connection.execute(f"PRAGMA {pragma}")
        connection.create_function("strip", 1, str.strip, deterministic=True)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All or none of what the block writes; on disk when the block has ended."""
    _begin(connection)
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _begin(connection: sqlite3.Connection) -> None:
    """BEGIN IMMEDIATE as soon as nobody else writes.

    SQLite's own waiting looks less and less often, so that of many writers some never get their turn.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT
    connection.execute("PRAGMA busy_timeout=0")
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(_DRAW.uniform(*LOOKS))
    finally:
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT * 1000:.0f}")


def write_new(path: Path) -> None:
    """A new, empty store with a random bot and salt. Raises UserError when the file exists or cannot be written."""
    if path.exists():
        raise UserError(f"{path}: exists already; choose another folder, or remove the file")
    with (
        explain_errors(path),
        atomic_file(path, 0o600) as temporary,
        closing(connect(temporary)) as connection,
        transaction(connection),
    ):
        for statement in (*CREATE, *UPDATE_TRIGGERS, *DELETE_TRIGGERS.values()):
            connection.execute(statement)
        for key in ("bot", "salt"):
            connection.execute("INSERT INTO meta VALUES (?, ?)", (key, secrets.token_hex(16)))
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def prepare(path: Path) -> dict[str, str]:
    """Check that the file is a store, and return its `meta`.

    Raises UserError: missing, not SQLite, not a store, a newer schema, locked, damaged, not writable.
    """
    if not path.is_file():
        raise UserError(f"{path}: there is no store of feedback; make a bot with `rlhf-dialog feedback init`")
    with explain_errors(path), closing(connect(path)) as connection:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise UserError(
                f"{path}: has schema version {version}, but this program knows versions up to {SCHEMA_VERSION}; "
                "update rlhf-dialog"
            )
        found = {row["name"] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if version < 1 or not set(TABLES) <= found:
            raise UserError(f"{path}: is an SQLite file, but not a store of feedback; choose another folder")
        connection.execute("PRAGMA journal_mode=WAL")
        with closing(sqlite3.connect(":memory:")) as fresh:
            for statement in CREATE:
                fresh.execute(statement)
            if lost := sorted(_columns(fresh) - _columns(connection)):
                raise UserError(f"{path}: is damaged: there is no {lost[0]}; put a backup in its place")
        meta = {row["key"]: row["value"] for row in connection.execute("SELECT key, value FROM meta")}
    if not {"bot", "salt"} <= set(meta):
        raise UserError(f"{path}: is damaged: it has no bot or no salt; put a backup in its place")
    return meta


def copy(connection: sqlite3.Connection, path: Path) -> None:
    """Write the database of `connection` to `path`, whole or not at all, while others write to it."""
    with atomic_file(path, 0o600) as temporary, closing(sqlite3.connect(temporary)) as target:
        connection.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")  # one file, which read-only media can hold


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {f"{table}.{row[1]}" for table in TABLES for row in connection.execute(f"PRAGMA table_info({table})")}


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the disk into a UserError that says what to do."""
    try:
        yield
    except (sqlite3.DatabaseError, OSError, UnicodeDecodeError) as error:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        raise UserError(f"{path}: {_meaning(error)}") from error


def _meaning(error: Exception) -> str:
    text = " ".join(str(error).split())
    full, denied = "the disk is full, and nothing was stored; free some space, then try again", "change its permissions"
    meanings = {
        "is not a database": "is not an SQLite file, so it is not a store of feedback; put a backup in its place",
        "decode": "is damaged (a text is not UTF-8); put a backup in its place",
        "malformed": "is damaged; put a backup in its place",
        "locked": f"is locked: another program has been writing to it for {BUSY_TIMEOUT:g} s; try again when it has ended",
        "is full": full,
        "No space left": full,
        "readonly": f"cannot be written: the file or its folder is read-only; {denied}",
        "Permission denied": f"cannot be written: the file or its folder is read-only; {denied}",
        "unable to open": f"cannot be opened: the file or its folder cannot be written; {denied}",
    }
    found = next((meaning for words, meaning in meanings.items() if words in text), None)
    return found or f"cannot be read or written: {text}; check the disk (is it full?), or put a backup in its place"


def check_types(rows: sqlite3.Cursor, path: Path) -> Iterator[sqlite3.Row]:
    """The rows. Raises UserError where SQL put something of another type into a column than this program does."""
    names = [column[0] for column in rows.description or ()]
    numbers = [place for place, name in enumerate(names) if name in NUMBERS or (name == "value" and "kind" in names)]
    for row in rows:
        if bytes in map(type, row) or any(type(row[place]) is str for place in numbers):
            wrong = next(
                n for n in range(len(row)) if isinstance(row[n], bytes) or (n in numbers and isinstance(row[n], str))
            )
            raise UserError(
                f"{path}: is damaged: a row has {row[wrong]!r:.40} as {names[wrong]}; put a backup in its place"
            )
        yield row
