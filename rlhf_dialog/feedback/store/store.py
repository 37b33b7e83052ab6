"""The store of a bot: dialogues, turns and feedback in one SQLite file, which only grows."""

import hashlib
import json
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store import schema
from rlhf_dialog.feedback.store.schema import explain_errors, transaction
from rlhf_dialog.json_files import damage_as_user_error, parse_json

SPEAKERS = ("user", "agent")
LOWEST = -1e9  # of a log-probability
CHANGES = ("edit", "choice")  # of what the dialogue goes on with
KINDS = ("thumb", "score", "edit", "choice", "dialogue_score", "withdrawn")
REQUEST_AGE, MAX_REQUESTS = 86400.0, 10_000  # seconds that a request is remembered, and how many are
VALUES = {"thumb": (1, -1), "score": (1, 2, 3, 4, 5), "dialogue_score": (1, 2, 3, 4, 5)}
Values = Sequence[Any] | dict[str, Any]
HELDOUT = 5  # one dialogue of five
LATEST = 253402300799.0  # the last second of the year 9999
HASH, ANSWER_ID = "[0-9a-f]{16}", "[0-9a-f]{32}(-1)?"
SAMPLES = "0" * 16  # in the place of a person's hash: ratings that were made up to try things out
# SQL: a row counts as of the event `:upto` if it was not withdrawn, and no newer one of the same person, turn (or dialogue) and
# kind replaces it; a choice replaces one between the same two answers.
COUNTING = """(kind != 'withdrawn' AND NOT EXISTS (
    SELECT 1 FROM feedback AS newer
    WHERE newer.dialogue = feedback.dialogue AND newer.id > feedback.id AND newer.id <= :upto
    AND +newer.person = feedback.person
    AND (newer.kind = 'withdrawn' AND newer.text = feedback.kind AND newer.turn IS feedback.turn
            AND (newer.other IS NULL OR newer.other IS feedback.other)
        OR newer.kind = feedback.kind AND (newer.turn IS feedback.turn AND newer.other IS feedback.other
            OR newer.turn IS feedback.other AND newer.other IS feedback.turn))))"""


@dataclass(frozen=True)
class StoredDialogue:
    id: str  # 32 hexadecimal digits
    started: float  # seconds of the epoch
    person: str  # hash of who began it
    source: str  # terminal, page, import:NAME
    heldout: bool


@dataclass(frozen=True)
class StoredTurn:
    """One utterance; several agent turns at one position are alternatives. What an answer came from is None of other turns."""

    id: int
    dialogue: str
    position: int
    speaker: str  # user, agent
    text: str
    token_ids: list[int] | None
    logprobs: list[float] | None  # one for each of token_ids, of the distribution that was sampled from
    sampling: dict[str, Any] | None
    version: str | None
    created: float


@dataclass(frozen=True)
class TurnOrigin:
    """What an agent's turn was sampled from; the columns of `StoredTurn`."""

    token_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    sampling: dict[str, Any] | None = None
    version: str | None = None


@dataclass(frozen=True)
class Rating:
    """What a person says of an answer or a dialogue.

    `thumb`: turn, value 1 or -1, text (the reason) if there is one. `score`: turn, value 1 to 5. `edit`: turn, text (the
    better answer). `choice`: turn (the chosen answer), other. `dialogue_score`: value 1 to 5. `withdrawn`: text (the kind that
    is taken back), and its turn; of a choice also other, or all choices of that turn are.
    """

    kind: str
    turn: int | None = None
    value: float | None = None
    text: str | None = None
    other: int | None = None


@dataclass(frozen=True)
class Event:
    """One row of feedback; `Rating` says which columns a kind has."""

    id: int
    dialogue: str
    turn: int | None
    kind: str
    value: float | None
    text: str | None
    other: int | None
    person: str
    created: float


def is_heldout(dialogue: str) -> bool:
    """Whether a dialogue of this id belongs to the held-out fifth."""
    return int(hashlib.sha256(dialogue.encode()).hexdigest(), 16) % HELDOUT == 0


def _new_id(heldout: bool | None) -> str:
    """A random id, on this side of the held-out line."""
    while True:
        dialogue = secrets.token_hex(16)
        if heldout is None or is_heldout(dialogue) == heldout:
            return dialogue


def storable(text: str) -> str:
    """The text with halves of characters, which UTF-8 cannot hold, as question marks."""
    return text.encode("utf-8", "replace").decode()


def plain_text(text: str) -> str:
    """A text as it is stored and compared: line ends as LF, nothing around it, and no halves of characters."""
    return storable(text.replace("\r\n", "\n").replace("\r", "\n")).strip()


class Store:
    """The file feedback.sqlite. Threads may share a Store, and processes may open the same file.

    Each method raises UserError when the file is locked for five seconds, damaged, cannot be written, or was replaced: what
    SQLite writes into a file that was removed is lost.
    """

    def __init__(self, path: Path, bot: str | None = None):
        """Open an existing store. Raises UserError for one of another bot than `bot`, and as `schema.prepare`."""
        self.path = Path(path)
        meta = schema.prepare(self.path)
        self.bot, self._salt = meta["bot"], meta["salt"]
        if bot is not None and bot != self.bot:
            raise UserError(
                f"{self.path}: belongs to another bot ({self.bot[:8]}.., not {bot[:8]}..); put this bot's own store there"
            )
        self._file = self.path.absolute()
        self._identity = _identity(self._file)
        self._own = threading.local()
        self._open: list[sqlite3.Connection] = []

    @classmethod
    def create(cls, path: Path) -> "Store":
        """A new store. Raises UserError when the file exists or cannot be written."""
        schema.write_new(Path(path))
        return cls(path)

    def hash_person(self, person: str) -> str:
        """What is stored of a person's random id: 16 hexadecimal digits."""
        return hashlib.sha256((self._salt + person).encode("utf-8", "replace")).hexdigest()[:16]

    def hash_outside(self, text: str) -> str:
        """What is stored of an id of another program (a user's, a chat's, a message's): 16 hexadecimal digits."""
        return hashlib.sha256(f"{self._salt} {text}".encode("utf-8", "replace")).hexdigest()[:16]

    def begin(
        self,
        person: str,
        source: str,
        dialogue: str | None = None,
        *,
        system: str | None = None,
        user: str | None = None,
        chat: str | None = None,
        heldout: bool | None = None,
    ) -> str:
        """Store a new dialogue under a random id, or under that of a simulation; returns the id.

        `system`: the system message that began it. `user`: whose it is, where several share `person`, and `chat`: the id that
        another program gave it, both as `hash_outside` has them. `heldout`: the side of the held-out line on which the id must
        be: a branch is where the dialogue is that it came from.
        """
        dialogue = dialogue or _new_id(heldout)
        with self.writing() as connection:
            row = (dialogue, time.time(), self.hash_person(person), storable(source), is_heldout(dialogue))
            connection.execute("INSERT INTO dialogues VALUES (?, ?, ?, ?, ?)", row)
            insert_parts(connection, dialogue, system, user, chat)
        return dialogue

    def add_turn(  # noqa: PLR0913 - the parts of a turn
        self,
        dialogue: str,
        position: int,
        speaker: str,
        text: str,
        origin: TurnOrigin = TurnOrigin(),
        *,
        answer: str | None = None,
        message: str | None = None,
        is_stopped: bool = False,
        is_copy: bool = False,
    ) -> int:
        """Store a turn; returns its id. Raises ValueError for an unknown dialogue or speaker, and for lists that do not fit.

        `answer`: its id for programs. `message`: the id that another program gave it, as `hash_outside` has it. `is_stopped`: the
        reader left before its end. `is_copy`: it is from a history that a program sent, and nobody said it in this dialogue.
        """
        if speaker not in SPEAKERS or position < 0:
            raise ValueError(f"a turn of {speaker!r} at position {position}")
        if origin.logprobs is not None and len(origin.logprobs) != len(origin.token_ids or ()):
            raise ValueError(f"{len(origin.logprobs)} logprobs of {len(origin.token_ids or ())} token_ids")
        columns = (origin.token_ids, origin.logprobs, origin.sampling)
        lists = [None if column is None else json.dumps(column, allow_nan=False) for column in columns]
        row = (dialogue, position, speaker, storable(text), *lists, origin.version, time.time())
        with self.writing() as connection:
            if connection.execute("SELECT 1 FROM dialogues WHERE id = ?", (dialogue,)).fetchone() is None:
                raise ValueError(f"there is no dialogue {dialogue!r}")
            number = insert_turn(connection, row)
            mark_turn(connection, number, answer, message, is_stopped, is_copy)
            return number

    def add_feedback(self, dialogue: str, person: str, rating: Rating) -> int:
        """Store one event; returns its id after it is on disk. Raises ValueError for any other kind, value or turn."""
        check_rating(rating)
        text = None if rating.text is None else storable(rating.text)
        by, now = self.hash_person(person), time.time()
        row = (dialogue, rating.turn, rating.kind, rating.value, text, rating.other, by, now)
        with self.writing() as connection:
            _check_turns(connection, dialogue, rating)
            return insert_event(connection, row)

    def dialogues(self) -> list[StoredDialogue]:
        """All dialogues, in the order in which they were stored."""
        return [_dialogue(row) for row in self.rows("SELECT * FROM dialogues ORDER BY rowid")]

    def turns(self, dialogue: str) -> list[StoredTurn]:
        """The turns of a dialogue by position, alternatives in the order in which they were written."""
        rows = self.rows("SELECT * FROM turns WHERE dialogue = ? ORDER BY position, id", (dialogue,))
        return [_turn(row) for row in rows]

    def feedback(self, upto: int | None = None, newest: bool = True, dialogue: str | None = None) -> list[Event]:
        """The events with id <= `upto`, by id, of one dialogue or all; with `newest`, those that count as of `upto`."""
        wanted = "id <= :upto" if dialogue is None else "id <= :upto AND dialogue = :dialogue"
        wanted += f" AND {COUNTING}" if newest else ""
        statement = f"SELECT * FROM feedback WHERE {wanted} ORDER BY id"
        rows = self.rows(statement, {"dialogue": dialogue, "upto": as_limit(upto)})
        return [Event(**{**dict(row), "created": as_time(row["created"])}) for row in rows]

    def find_answer(self, answer: str) -> StoredTurn | None:
        """The turn that has this id for programs."""
        rows = self.rows("SELECT turns.* FROM answers JOIN turns ON turns.id = turn WHERE answers.id = ?", (answer,))
        return _turn(rows[0]) if rows else None

    def system(self, dialogue: str) -> str | None:
        """The system message that began the dialogue; None: the agent's own."""
        rows = self.rows("SELECT text FROM systems WHERE dialogue = ?", (dialogue,))
        return rows[0][0] if rows else None

    def stopped(self) -> set[int]:
        """The ids of the answers that the reader left before they ended."""
        return {row[0] for row in self.rows("SELECT turn FROM stopped")}

    def copies(self) -> set[int]:
        """The ids of the turns that nobody said in their dialogue: a program sent them as its history."""
        return {row[0] for row in self.rows("SELECT turn FROM copies")}

    def users(self, person_hash: str | None = None) -> set[str]:
        """The hashes of those who share a person with others: this one, or any."""
        statement = "SELECT hash FROM users JOIN dialogues ON id = dialogue WHERE ?1 IS NULL OR person = ?1"
        return {row[0] for row in self.rows(statement, (person_hash,))}

    def find_request(self, key: str) -> tuple[str, str] | None:
        """The hash of the body, and the answer's id, of a request with this hash of its idempotency key, for `REQUEST_AGE`."""
        statement = "SELECT body, answer FROM requests WHERE hash = ? AND created > ?"
        rows = self.rows(statement, (key, time.time() - REQUEST_AGE))
        return (rows[0]["body"], rows[0]["answer"]) if rows else None

    def add_request(self, key: str, body: str, answer: str) -> None:
        """Remember what a request was answered with, by hashes of its key and its body; the oldest are dropped."""
        with self.writing() as connection:
            now = time.time()
            connection.execute("DELETE FROM requests WHERE created <= ? OR hash = ?", (now - REQUEST_AGE, key))
            connection.execute("INSERT INTO requests VALUES (?, ?, ?, ?)", (key, body, answer, now))
            newest = "SELECT hash FROM requests ORDER BY created DESC, rowid DESC LIMIT ?"
            if connection.execute("SELECT count(*) FROM requests").fetchone()[0] > MAX_REQUESTS:
                connection.execute(f"DELETE FROM requests WHERE hash NOT IN ({newest})", (MAX_REQUESTS,))

    def list_dialogues(self, person: str, limit: int = 50) -> list[tuple[StoredDialogue, str]]:
        """A person's newest dialogues, newest first, each with the first words in it; `person` is their random id."""
        rows = self.rows(
            "SELECT dialogues.*, (SELECT text FROM turns WHERE dialogue = dialogues.id ORDER BY position, id LIMIT 1) AS words "
            "FROM dialogues WHERE person = ? ORDER BY started DESC LIMIT ?",
            (self.hash_person(person), limit),
        )
        return [(_dialogue(row), row["words"] or "") for row in rows]

    def last_event(self) -> int:
        """The highest id of feedback, 0 before the first."""
        return int(self.rows("SELECT coalesce(max(id), 0) FROM feedback")[0][0])

    def last_turn(self) -> int:
        """The highest id of a turn, 0 before the first."""
        return int(self.rows("SELECT coalesce(max(id), 0) FROM turns")[0][0])

    def reserve(self, event: int) -> None:
        """Let all new events have an id above this one."""
        if self.rows("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'feedback'")[0][0] < event:
            with self.writing() as connection:
                connection.execute("DELETE FROM sqlite_sequence WHERE name = 'feedback'")
                connection.execute("INSERT INTO sqlite_sequence VALUES ('feedback', ?)", (event,))

    def people(self) -> set[str]:
        """The hashes of all who have a dialogue or feedback."""
        return {row[0] for row in self.rows("SELECT person FROM dialogues UNION SELECT person FROM feedback")}

    def forget(self, person_hash: str, user: str | None = None) -> int:
        """Remove a person's dialogues (all turns, everybody's feedback on them) and feedback; returns the number of rows.

        With `user`, one of those who share this person, only that one's dialogues. The bytes are gone from the file too. Raises
        UserError when a reader keeps them alive; the rows are gone then.
        """
        theirs = "SELECT value FROM json_each(:dialogues)"
        turns = f"SELECT id FROM turns WHERE dialogue IN ({theirs})"
        events = f"SELECT id FROM feedback WHERE dialogue IN ({theirs}) OR :user IS NULL AND person = :person"
        parts = {
            "requests": f"answer IN (SELECT id FROM answers WHERE turn IN ({turns}))",
            "pulled": f"event IN ({events})",
            **dict.fromkeys(("answers", "stopped", "copies", "messages"), f"turn IN ({turns})"),
            **dict.fromkeys(("systems", "users", "chats"), f"dialogue IN ({theirs})"),
        }
        rows = {"feedback": f"id IN ({events})", "turns": f"id IN ({turns})", "dialogues": f"id IN ({theirs})"}
        removed, values = 0, {"person": person_hash, "user": user}
        with self.writing() as connection:
            own = "SELECT id FROM dialogues WHERE person = :person"
            of_user = " AND id IN (SELECT dialogue FROM users WHERE hash = :user)" if user is not None else ""
            values["dialogues"] = json.dumps([row[0] for row in connection.execute(own + of_user, values)])
            for trigger in schema.DELETE_TRIGGERS:
                connection.execute(f"DROP TRIGGER IF EXISTS {trigger}")
            for table, condition in (*parts.items(), *rows.items()):
                done = connection.execute(f"DELETE FROM {table} WHERE {condition}", values).rowcount
                removed += done if table in rows else 0
            for statement in schema.DELETE_TRIGGERS.values():
                connection.execute(statement)
        self._erase()
        return removed

    def _erase(self) -> None:
        done = "the rows are removed, but their bytes are still in the file"
        try:
            self._connection().execute("VACUUM")
            busy = self._connection().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.OperationalError as error:
            raise UserError(f"{self.path}: {done} ({error}); free some space, then run forget again") from error
        if busy:
            raise UserError(f"{self.path}: {done}: another program is reading; run forget again when it has ended")

    def check(self) -> None:
        """Read the whole file. Raises UserError when it is damaged."""
        found = self.rows("PRAGMA quick_check(1)")[0][0]
        if found != "ok":
            raise UserError(f"{self.path}: is damaged ({found}); put a backup in its place")

    def backup(self, path: Path) -> None:
        """Copy the store to the file `path` while others write; an earlier backup there is replaced."""
        with explain_errors(Path(path)):
            schema.copy(self._connection(), Path(path))

    def close(self) -> None:
        for connection in self._open:
            connection.close()
        self._open, self._own = [], threading.local()

    def rows(self, statement: str, values: Values = ()) -> list[sqlite3.Row]:
        with explain_errors(self.path):
            return self._connection().execute(statement, values).fetchall()

    def each_row(self, statement: str, values: Values = ()) -> Iterator[sqlite3.Row]:
        """The rows of a SELECT, one at a time, for a block of `reading`."""
        return self._connection().execute(statement, values)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What this thread reads in the block is of one moment, also while others write or forget."""
        with explain_errors(self.path):
            connection = self._connection()
            connection.execute("BEGIN")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all or none of its rows, on disk when the block has ended.

        What this thread writes by other methods in the block, and in a block inside it, belongs to the transaction.
        """
        if (outer := getattr(self._own, "writing", None)) is not None:
            yield outer
            return
        with explain_errors(self.path), transaction(self._connection()) as connection:
            self._own.writing = connection
            try:
                yield connection
            finally:
                self._own.writing = None

    def _connection(self) -> sqlite3.Connection:
        if _identity(self._file) != self._identity:
            raise UserError(
                f"{self.path}: was removed or replaced while this program used it; put it back, and start the program again"
            )
        if not hasattr(self._own, "connection"):
            self._own.connection = schema.connect(self.path)
            self._open.append(self._own.connection)
        return cast(sqlite3.Connection, self._own.connection)


def _dialogue(row: sqlite3.Row) -> StoredDialogue:
    return StoredDialogue(row["id"], as_time(row["started"]), row["person"], row["source"], bool(row["heldout"]))


def as_time(seconds: float) -> float:
    """Seconds of the epoch as they are stored, in the years that a date can have."""
    return min(max(seconds, 0.0), LATEST)


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file is at the path; None when there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _turn(row: sqlite3.Row) -> StoredTurn:
    given = [key for key in ("token_ids", "logprobs", "sampling") if row[key] is not None]
    with damage_as_user_error(f"the store of feedback: turn {row['id']} is damaged (", "); put a backup in its place"):
        read = {key: parse_json(row[key]) for key in given}
        check_origin(**read)
    return StoredTurn(**{**dict(row), **read, "created": as_time(row["created"])})


def check_origin(token_ids: Any = None, logprobs: Any = None, sampling: Any = None) -> None:
    """Raises ValueError when what an answer was sampled from has other types, or log-probabilities that cannot be."""
    if not all(type(one) is int for one in _list(token_ids)):
        raise ValueError("token_ids are not whole numbers")
    if not all(type(one) in (int, float) and LOWEST < one < 1 for one in _list(logprobs)):
        raise ValueError("logprobs are not logarithms of probabilities")
    if not isinstance(sampling, dict | None) or not all(
        type((sampling or {}).get(name, 1)) in (int, float, bool) for name in ("temperature", "top_k", "top_p")
    ):
        raise ValueError("sampling is not a mapping with numbers")


def _list(found: Any) -> list[Any]:
    if not isinstance(found, list | None):
        raise ValueError("a value is no list")
    return found or []


def insert_turn(connection: sqlite3.Connection, row: Sequence[Any]) -> int:
    """Insert the columns of a turn after its id; returns the id."""
    return int(connection.execute("INSERT INTO turns VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row).lastrowid or 0)


def insert_parts(
    connection: sqlite3.Connection, dialogue: str, system: str | None, user: str | None, chat: str | None
) -> None:
    """What `Store.begin` keeps beside the row of a dialogue. Raises ValueError for an id that is not hashed."""
    _check_hashes(user, chat)
    text = None if system is None else storable(system)
    for table, value in (("systems", text), ("users", user), ("chats", chat)):
        if value is not None:
            connection.execute(f"INSERT INTO {table} VALUES (?, ?)", (dialogue, value))


def mark_turn(
    connection: sqlite3.Connection, turn: int, answer: str | None, message: str | None, is_stopped: bool, is_copy: bool
) -> None:
    """What `Store.add_turn` keeps beside the row of a turn. Raises ValueError for an id that is not hashed or no answer's."""
    _check_hashes(message)
    if answer is not None:
        if not re.fullmatch(ANSWER_ID, answer):
            raise ValueError(f"id of an answer {answer!r}")
        connection.execute("INSERT INTO answers VALUES (?, ?)", (answer, turn))
    if message is not None:
        connection.execute("INSERT INTO messages VALUES (?, ?)", (turn, message))
    for table, holds in (("stopped", is_stopped), ("copies", is_copy)):
        if holds:
            connection.execute(f"INSERT INTO {table} VALUES (?)", (turn,))


def _check_hashes(*hashes: str | None) -> None:
    for one in hashes:
        if one is not None and not re.fullmatch(HASH, one):
            raise ValueError("an id of another program is stored as `hash_outside` has it")


def insert_event(connection: sqlite3.Connection, row: Sequence[Any]) -> int:
    """Insert the columns of an event after its id; returns the id."""
    return int(connection.execute("INSERT INTO feedback VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)", row).lastrowid or 0)


def check_rating(rating: Rating) -> None:
    """Raises ValueError when a rating of this kind cannot have these columns."""
    kind, turn, text, other = rating.kind, rating.turn, rating.text, rating.other
    of_dialogue = kind == "dialogue_score" or (kind == "withdrawn" and text == "dialogue_score")
    of_choice = kind == "choice" or (kind == "withdrawn" and text == "choice")
    expected = {
        "a known kind": kind in KINDS,
        "a turn": (turn is None) == of_dialogue,
        f"a value of {VALUES.get(kind)}": rating.value in VALUES.get(kind, (None,)),
        "another answer, for a choice alone": (kind != "choice" if other is None else of_choice and other != turn),
        "a text, for an edit": kind != "edit" or bool((text or "").strip()),
        "a text, for no score": kind not in ("score", "dialogue_score", "choice") or text is None,
        "a kind to withdraw": kind != "withdrawn" or text in KINDS[:-1],
    }
    if missing := [name for name, holds in expected.items() if not holds]:
        raise ValueError(
            f"feedback {kind!r} (turn {turn}, value {rating.value}, other {other}): wanted {', '.join(missing)}"
        )


def _check_turns(connection: sqlite3.Connection, dialogue: str, rating: Rating) -> None:
    """Raises ValueError unless the turns are answers in this dialogue, those of a choice at one position."""
    if connection.execute("SELECT 1 FROM dialogues WHERE id = ?", (dialogue,)).fetchone() is None:
        raise ValueError(f"there is no dialogue {dialogue!r}")
    positions = []
    for turn_id in (rating.turn, rating.other):
        if turn_id is not None:
            found = connection.execute("SELECT * FROM turns WHERE id = ?", (turn_id,)).fetchone()
            if found is None or found["dialogue"] != dialogue or found["speaker"] != "agent":
                raise ValueError(f"feedback {rating.kind!r}: turn {turn_id} is not an answer in dialogue {dialogue}")
            if connection.execute("SELECT 1 FROM copies WHERE turn = ?", (turn_id,)).fetchone() is not None:
                raise ValueError(f"feedback {rating.kind!r}: turn {turn_id} is copied, not an answer of this dialogue")
            positions.append(found["position"])
    if len(set(positions)) > 1:
        raise ValueError(f"feedback {rating.kind!r}: turns {rating.turn} and {rating.other} answer different turns")


def as_limit(upto: int | None) -> int:
    """The highest id that is meant; None is all."""
    return (1 << 63) - 1 if upto is None else upto
