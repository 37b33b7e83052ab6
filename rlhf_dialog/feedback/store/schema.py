"""The tables of the store, and what SQLite's errors mean."""

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rlhf_dialog.atomic_files import atomic_file
from rlhf_dialog.errors import UserError

SCHEMA_VERSION = 1
BUSY_TIMEOUT = 5.0  # seconds that a connection waits for another one's transaction
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
CHANGE_PERMISSIONS = "change the permissions of the file and its folder"
FREE_SPACE = "nothing was stored; free some space, then try again"
REMEDIES = {  # by words of an error
    "locked": "another program is writing to it; try again when it has ended",
    "full": FREE_SPACE,
    "No space": FREE_SPACE,
    "readonly": CHANGE_PERMISSIONS,
    "Permission": CHANGE_PERMISSIONS,
    "unable to open": CHANGE_PERMISSIONS,
}


def connect(path: Path) -> sqlite3.Connection:
    """A connection to an existing file with the store's settings; transactions are begun explicitly."""
    uri = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, uri=True)
    try:
        connection.row_factory = sqlite3.Row
        for pragma in ("foreign_keys=ON", "synchronous=FULL", "secure_delete=ON", "trusted_schema=OFF"):
            connection.execute(f"PRAGMA {pragma}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All or none of what the block writes; on disk when the block has ended."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


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
        if not set(CREATE) <= {row["sql"] for row in connection.execute("SELECT sql FROM sqlite_master")}:
            raise UserError(f"{path}: is not a store of feedback, or is damaged; put a backup in its place")
        connection.execute("PRAGMA journal_mode=WAL")
        meta = {row["key"]: row["value"] for row in connection.execute("SELECT key, value FROM meta")}
    if not {"bot", "salt"} <= set(meta):
        raise UserError(f"{path}: is damaged: it has no bot or no salt; put a backup in its place")
    return meta


def copy(connection: sqlite3.Connection, path: Path) -> None:
    """Write the database of `connection` to `path`, whole or not at all, while others write to it."""
    with atomic_file(path, 0o600) as temporary, closing(sqlite3.connect(temporary)) as target:
        connection.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")  # one file, which read-only media can hold


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the disk into a UserError that says what to do."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise
    except (sqlite3.DatabaseError, OSError, UnicodeDecodeError) as error:
        text = " ".join(str(error).split())
        remedy = next((remedy for words, remedy in REMEDIES.items() if words in text), "put a backup in its place")
        raise UserError(f"{path}: {text}; {remedy}") from error
