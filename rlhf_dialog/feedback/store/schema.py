"""The tables of the store, and what SQLite's errors mean."""

import errno
import re
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
JSON_COLUMNS = ("token_ids", "logprobs", "sampling")
COLUMN = re.compile(r"(\w+) (TEXT|REAL|INTEGER)\b([^,]*)")
REMEDIES = {  # by the name of SQLite's or the system's error; of all others a backup
    "SQLITE_(BUSY|LOCKED)": "another program is writing to it; try again when it has ended",
    "SQLITE_(FULL|IOERR(?!_(READ|SHORT_READ|CORRUPTFS|DATA)))|ENOSPC|EDQUOT|EFBIG": "the disk is full, or a quota or limit is "
    "reached: nothing was stored or lost; free some space, then try again",
    "SQLITE_(READONLY|CANTOPEN|PERM)|EACCES|EPERM|EROFS": "change the permissions of the file and its folder",
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
        _check_parts(connection, path)
        connection.execute("PRAGMA journal_mode=WAL")
        _check_types(connection, path)
        meta = {row["key"]: row["value"] for row in connection.execute("SELECT key, value FROM meta")}
    if not {"bot", "salt"} <= set(meta):
        raise UserError(f"{path}: is damaged: it has no bot or no salt; put a backup in its place")
    return meta


def _check_parts(connection: sqlite3.Connection, path: Path) -> None:
    """Raises UserError when the database lacks a table or an index of a store, or has a part that a store has not."""
    found = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    if not set(CREATE) <= {part["sql"] for part in found}:
        raise UserError(f"{path}: is not a store of feedback, or is damaged; put a backup in its place")
    ours = {*CREATE, *UPDATE_TRIGGERS, *DELETE_TRIGGERS.values(), None, "CREATE TABLE sqlite_sequence(name,seq)"}
    for part in found:  # an index without a statement is that of a key
        is_statistics = part["type"] == "table" and part["name"].startswith("sqlite_stat")  # of ANALYZE
        if part["sql"] not in ours and not is_statistics:
            raise UserError(
                f"{path}: has the {part['type']} {part['name']!r:.60}, which a store of feedback has not and which may change "
                "what is stored; drop it if it is yours, else do not use this store"
            )


def _check_types(connection: sqlite3.Connection, path: Path) -> None:
    """Raises UserError for a value that is not of its column's type, which SQLite allows; who reads JSON checks it."""
    for statement in CREATE:
        wrong = []
        for name, kind, rest in COLUMN.findall(statement):
            if name in JSON_COLUMNS:
                continue
            types = f"'{kind.lower()}'" if "NOT NULL" in rest or "KEY" in rest else f"'{kind.lower()}', 'null'"
            wrong.append(f"WHEN typeof({name}) NOT IN ({types}) THEN '{name}'")
        if wrong:
            table = statement.split()[2]
            query = f"SELECT rowid AS number, CASE {' '.join(wrong)} END AS name FROM {table} WHERE name IS NOT NULL LIMIT 1"
            if row := connection.execute(query).fetchone():
                raise UserError(
                    f"{path}: is damaged: row {row['number']} of {table} has a value of another type in the column "
                    f"{row['name']}; put a backup in its place"
                )


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
        name = getattr(error, "sqlite_errorname", None) or errno.errorcode.get(getattr(error, "errno", None) or 0, "")
        remedy = next(
            (remedy for names, remedy in REMEDIES.items() if re.match(names, name)), "put a backup in its place"
        )
        raise UserError(f"{path}: {text}; {remedy}") from error
