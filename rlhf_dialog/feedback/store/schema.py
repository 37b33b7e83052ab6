"""The tables of the store, how an older store gets the newer ones, and what SQLite's errors mean."""

import errno
import logging
import re
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from rlhf_dialog.atomic_files import atomic_file
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import refuse_newer

logger = logging.getLogger(__name__)
SCHEMA_VERSION = 2
BUSY_TIMEOUT = 5.0  # seconds that a connection waits for another one's transaction
CREATE_1 = (
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
CREATE_2 = (  # each `hash` is salted as that of a person
    # id: of an answer for programs: 32 hexadecimal digits, or these and -1 of a second choice
    "CREATE TABLE answers (id TEXT PRIMARY KEY, turn INTEGER NOT NULL REFERENCES turns)",
    # answers that the reader left before they ended: the text so far
    "CREATE TABLE stopped (turn INTEGER PRIMARY KEY REFERENCES turns)",
    # turns that were copied from a history that a program sent: nobody said them in this dialogue
    "CREATE TABLE copies (turn INTEGER PRIMARY KEY REFERENCES turns)",
    # the system message that began a dialogue, in the place of the agent's own
    "CREATE TABLE systems (dialogue TEXT PRIMARY KEY REFERENCES dialogues, text TEXT NOT NULL)",
    # whose dialogue it is, where several share one `person`
    "CREATE TABLE users (dialogue TEXT PRIMARY KEY REFERENCES dialogues, hash TEXT NOT NULL)",
    # the id that another program gave the dialogue, and one of its messages
    "CREATE TABLE chats (dialogue TEXT PRIMARY KEY REFERENCES dialogues, hash TEXT NOT NULL)",
    "CREATE TABLE messages (turn INTEGER PRIMARY KEY REFERENCES turns, hash TEXT NOT NULL)",
    # hash: of an idempotency key and its person; body: hash of the request; answer: an id of `answers`
    "CREATE TABLE requests (hash TEXT PRIMARY KEY, body TEXT NOT NULL, answer TEXT NOT NULL, created REAL NOT NULL)",
    # a rating of another program, by its id there, and an event that holds it
    "CREATE TABLE pulled (hash TEXT NOT NULL, event INTEGER NOT NULL REFERENCES feedback)",
    "CREATE INDEX answers_turn ON answers (turn)",
    "CREATE INDEX users_hash ON users (hash)",
    "CREATE INDEX chats_hash ON chats (hash)",
    "CREATE INDEX messages_hash ON messages (hash)",
    "CREATE INDEX requests_created ON requests (created)",
    "CREATE INDEX requests_answer ON requests (answer)",
    "CREATE INDEX pulled_hash ON pulled (hash)",
    "CREATE INDEX pulled_event ON pulled (event)",
)
FORGOTTEN = ("requests",)  # nothing that people said: old rows are deleted at any time


def _tables(statements: Sequence[str]) -> list[str]:
    return [words[2] for words in map(str.split, statements) if words[1] == "TABLE"]


def _keep(statements: Sequence[str]) -> dict[str, str]:
    """The triggers that refuse a DELETE of the rows of these tables."""
    return {
        f"{table}_keeps": f"CREATE TRIGGER {table}_keeps BEFORE DELETE ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'the store is append-only: nothing is deleted but by forget'); END"
        for table in _tables(statements)
        if table not in FORGOTTEN
    }


def _stay(statements: Sequence[str]) -> tuple[str, ...]:
    """The triggers that refuse an UPDATE of the rows of these tables."""
    return tuple(
        f"CREATE TRIGGER {table}_stays BEFORE UPDATE ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'the store is append-only: nothing is updated'); END"
        for table in _tables(statements)
    )


VERSIONS = {1: CREATE_1, 2: CREATE_2}  # what each has more than the one before: tables and indexes, never a column
CREATE = (*CREATE_1, *CREATE_2)
DELETE_TRIGGERS, UPDATE_TRIGGERS = _keep(CREATE), _stay(CREATE)
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
    """Check that the file is a store, give an older one the tables of today, and return its `meta`.

    Raises UserError: missing, not SQLite, not a store, a newer schema, locked, damaged, not writable.
    """
    if not path.is_file():
        raise UserError(f"{path}: there is no store of feedback; make a bot with `rlhf-dialog feedback init`")
    with explain_errors(path), closing(connect(path)) as connection:
        connection.execute("BEGIN")  # another process may add the tables of today
        version = _read_version(connection)
        refuse_newer(path, version, SCHEMA_VERSION, "schema")
        _check_parts(connection, path, version)
        connection.execute("ROLLBACK")
        connection.execute("PRAGMA journal_mode=WAL")
        _check_types(connection, path, version)
        if version < SCHEMA_VERSION:
            _upgrade(connection, path)
        meta = {row["key"]: row["value"] for row in connection.execute("SELECT key, value FROM meta")}
    if not {"bot", "salt"} <= set(meta):
        raise UserError(f"{path}: is damaged: it has no bot or no salt; put a backup in its place")
    return meta


def _read_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _statements(version: int) -> tuple[str, ...]:
    """The tables and indexes of a store of this version."""
    return tuple(statement for number, create in VERSIONS.items() if number <= version for statement in create)


def backup_path(path: Path, version: int) -> Path:
    """Where the store as it was lies, once it has got the tables of a newer version."""
    return path.with_name(f"{path.stem}.version-{version}{path.suffix}")


def _upgrade(connection: sqlite3.Connection, path: Path) -> None:
    """Copy an older store beside itself, then give it the tables of today in one transaction, during which nobody writes.

    A kill leaves the store of the older version or that of today, whole.
    """
    with transaction(connection):
        version = _read_version(connection)
        if version == SCHEMA_VERSION:  # another process was faster
            return
        backup = backup_path(path, version)
        with closing(connect(path)) as reader, explain_errors(backup):
            copy(reader, backup)
        for number in range(version + 1, SCHEMA_VERSION + 1):
            added = VERSIONS[number]
            for statement in (*added, *_stay(added), *_keep(added).values()):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    text = "%s: has schema version %d now, which older programs do not open; %s is a copy of it as it was"
    logger.warning(text, path, SCHEMA_VERSION, backup)


def _check_parts(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Raises UserError when the database lacks a table or an index of a store, or has a part that a store has not."""
    found = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    create = _statements(version)
    if version not in VERSIONS or not set(create) <= {part["sql"] for part in found}:
        raise UserError(f"{path}: is not a store of feedback, or is damaged; put a backup in its place")
    ours = {*create, *_stay(create), *_keep(create).values(), None, "CREATE TABLE sqlite_sequence(name,seq)"}
    for part in found:  # an index without a statement is that of a key
        is_statistics = part["type"] == "table" and part["name"].startswith("sqlite_stat")  # of ANALYZE
        if part["sql"] not in ours and not is_statistics:
            raise UserError(
                f"{path}: has the {part['type']} {part['name']!r:.60}, which a store of feedback has not and which may change "
                "what is stored; drop it if it is yours, else do not use this store"
            )


def _check_types(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Raises UserError for a value that is not of its column's type, which SQLite allows; who reads JSON checks it."""
    for statement in _statements(version):
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
