"""Open WebUI's feedback export (`GET /api/v1/evaluations/feedbacks/all/export`): its thumbs, laid on the answers in the store.

The export has a whole chat beside each rating, of which nothing is stored: the answer was stored when the chat page asked for it.
It is found by the id of its message, or, where no id was sent, by what was said before it and its text, if they are those of one
stored answer alone. A rating is the person's whose dialogue that is, and is left out where another user has given it.
"""

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from rlhf_dialog.data.sources.rows import Row
from rlhf_dialog.feedback.store.examples import turns_before
from rlhf_dialog.feedback.store.formats.record import ImportResult
from rlhf_dialog.feedback.store.store import LATEST, Rating, Store, insert_event, plain_text, storable

RATINGS = {"1": 1, "-1": -1}
DETAILS = re.compile(
    r"""<(/?)details\b((?:"[^"]*"|'[^']*'|[^>"'])*)>""", re.IGNORECASE
)  # what a model did besides answering
TYPE = re.compile(r"""\btype\s*=\s*["']?(\w+)""")
TAGS = "think|thinking|reason|reasoning|thought"
THOUGHT = re.compile(rf"\A.*</(?:{TAGS})>|\A\s*<(?:{TAGS})>.*", re.DOTALL | re.IGNORECASE)
OF_OTHERS = "ratings by another person than the one who talked"
CHANGED = "ratings of answers whose text was changed in Open WebUI"
SEVERAL = "ratings that fit several stored answers"
APART = "choices between answers that are not stored as answers to one message"
IsSender = Callable[[str, str, str | None], bool]  # a user's id there, the hashes of a dialogue's person and user
Key = tuple[str, int | None, int | None]  # kind, turn, other


@dataclass(frozen=True)
class ChatMessage:
    """An answer of a model in a chat: `turns` are the texts from the first one to its own, none where the export lacks one."""

    id: str
    turns: tuple[str, ...]


@dataclass(frozen=True)
class ChatRating:
    """A thumb on an answer; `siblings` are the other answers to the same message."""

    id: str
    user: str
    chat: str
    message: ChatMessage
    siblings: tuple[ChatMessage, ...]
    value: int
    text: str | None  # reason and comment
    model: str
    created: float  # seconds of the epoch, when it was given or last changed


def is_export(row: Row) -> bool:
    return {"user_id", "type", "data", "meta", "snapshot"} <= set(row)


def lay_ratings(store: Store, rows: Iterable[Row], is_sender: IsSender, origin: str | None = None) -> ImportResult:
    """Store what the rows say that was not stored yet: all of it, or nothing.

    `is_sender`: whether a user of Open WebUI may be who has the dialogue. `origin`: the address of the Open WebUI whose whole
    export this is: what was pulled from it before and is not in it any more is withdrawn. Raises UserError as `Store`.
    """
    left_out, names, ratings = Counter[str](), set[str](), list[ChatRating]()
    result = ImportResult("open-webui", left_out=left_out)
    for row in rows:
        names.add(store.hash_outside(str(row.get("id"))))
        rating = _read_rating(row, result.unread)
        if isinstance(rating, str):
            left_out[rating] += 1
        else:
            ratings.append(rating)
    with store.writing() as connection:
        pulled = _Pulled(store, connection, result, origin)
        answers = _StoredAnswers(store, ratings, is_sender)
        for rating in sorted(ratings, key=lambda one: one.created):
            said = answers.judgements(rating, left_out)
            if isinstance(said, str):
                left_out[said] += 1
            else:
                pulled.update(rating, *said)
        if origin is not None:
            pulled.withdraw_missing(names)
    return result


def _read_rating(row: Row, unread: Counter[str]) -> ChatRating | str:
    """The rating in a row, or why there is none to lay."""
    data, meta, snapshot = _dict(row.get("data")), _dict(row.get("meta")), _dict(_dict(row.get("snapshot")).get("chat"))
    value = RATINGS.get(str(data.get("rating")))
    seconds = row.get("updated_at") or row.get("created_at")
    names = (row.get("id"), row.get("user_id"), meta.get("message_id"), meta.get("chat_id"))
    if row.get("type") != "rating" or value is None:
        return "feedback without a thumb"
    if not all(isinstance(name, str) and name for name in names) or not _is_time(seconds):
        return "ratings that do not say of which message they are, whose or when"
    if snapshot.get("user_id", row["user_id"]) != row["user_id"]:
        return OF_OTHERS
    if _dict(data.get("details")).get("rating") is not None:
        unread["details.rating (1 to 10)"] += 1
    messages = _dict(_dict(_dict(snapshot.get("chat")).get("history")).get("messages"))
    message = _read_message(messages, str(meta["message_id"]))
    if isinstance(message, str):
        return message
    parent = _dict(messages.get(str(_dict(messages.get(message.id)).get("parentId"))))
    children = parent.get("childrenIds") if data.get("sibling_model_ids") else None
    others = (
        [one for one in children if isinstance(one, str) and one != message.id] if isinstance(children, list) else []
    )
    siblings = [_read_message(messages, one) for one in others]
    words = [str(data[key]).strip() for key in ("reason", "comment") if data.get(key)]
    return ChatRating(
        id=str(row["id"]),
        user=str(row["user_id"]),
        chat=str(meta["chat_id"]),
        message=message,
        siblings=tuple(one for one in siblings if isinstance(one, ChatMessage)),
        value=value,
        text=storable(": ".join(filter(None, words))) or None,
        model=str(data.get("model_id") or meta.get("model_id")),
        created=float(seconds or 0),
    )


def _read_message(messages: Row, name: str) -> ChatMessage | str:
    """An answer, with the texts that lead to it along the parents; or why nothing can be said of it."""
    path, place = list[Row](), cast(Any, name)
    while place is not None:
        message = messages.get(place) if isinstance(place, str) else None
        if not isinstance(message, dict) or len(path) == len(messages):
            return ChatMessage(name, ())
        path.append(message)
        place = message.get("parentId")
    if any(_has_image(message) for message in path):
        return "ratings in chats with images or files"
    if path[0].get("role") != "assistant":
        return "ratings of a message that is no answer"
    said = [(one["role"], _text(one)) for one in reversed(path) if one.get("role") in ("user", "assistant")]
    turns = tuple(answer_text(text) if role == "assistant" else plain_text(text) for role, text in said)
    return ChatMessage(name, turns if all(turns) else ())


def answer_text(text: str) -> str:
    """An answer as it is compared: without the page's blocks of thoughts and calls of tools, and thoughts in tags of the model.

    >>> answer_text('<details type="reasoning"><summary>Thought</summary>> Far?</details>\\nIt is near.\\r\\n')
    'It is near.'
    """
    kept, depth, start = list[str](), 0, 0
    for tag in DETAILS.finditer(text):
        is_end, kind = bool(tag[1]), TYPE.search(tag[2])
        if depth:
            depth += -1 if is_end else 1
            start = tag.end()
        elif kind and not is_end:  # without a type it is the model's own
            kept.append(text[start : tag.start()])
            depth = 1
    return plain_text(THOUGHT.sub("", "".join([*kept, "" if depth else text[start:]])))


def _text(message: Row) -> str:
    """The content of a message, or the texts in the items of an answer without one."""
    content = message.get("content")
    if isinstance(content, str) and content.strip():
        return content
    output = message.get("output")
    items = [_dict(item) for item in output] if isinstance(output, list) else []
    parts = [content, *(item.get("content") for item in items if item.get("type") == "message")]
    texts = [_dict(part).get("text") for one in parts if isinstance(one, list) for part in one]
    return "\n".join(text for text in texts if isinstance(text, str))


def _has_image(message: Row) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return bool(message.get("files")) or any(_dict(part).get("type", "text") != "text" for part in parts)


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= LATEST


def _dict(value: Any) -> Row:
    return value if isinstance(value, dict) else {}


class _StoredAnswers:
    """The bot's answers that ratings may be of: those that a program asked for."""

    def __init__(self, store: Store, ratings: list[ChatRating], is_sender: IsSender):
        self.store, self.is_sender, self.stopped = store, is_sender, store.stopped()
        self.liked = {rating.message.id for rating in ratings if rating.value > 0}
        messages = [message for rating in ratings for message in (rating.message, *rating.siblings)]
        texts = {message.turns[-1] for message in messages if message.turns}
        self.by_text: dict[str, list[sqlite3.Row]] = {}
        statement = """SELECT turns.* FROM answers JOIN turns ON turns.id = turn
            WHERE turn NOT IN (SELECT turn FROM messages) ORDER BY turn"""
        for turn in store.each_row(statement):
            if (text := answer_text(turn["text"])) in texts:
                self.by_text.setdefault(text, []).append(turn)

    def judgements(self, rating: ChatRating, left_out: Counter[str]) -> tuple[str, list[Rating]] | str:
        """What a rating says, with the dialogue: the thumb, and with a thumb up a choice of this answer over each other answer
        that is not liked too. Or why it cannot be laid.
        """
        turn = self.find(rating.message, rating.chat)
        if turn is None:
            return f"ratings of answers of '{rating.model:.40}' that the store does not have"
        if isinstance(turn, str):
            return turn
        whose = "SELECT person, (SELECT hash FROM users WHERE dialogue = id) FROM dialogues WHERE id = ?"
        if not self.is_sender(rating.user, *self.store.rows(whose, (turn["dialogue"],))[0]):
            return OF_OTHERS
        said = [Rating("thumb", turn["id"], rating.value, rating.text)]
        for sibling in rating.siblings if rating.value > 0 else ():
            other = None if sibling.id in self.liked else self.find(sibling, rating.chat)
            if isinstance(other, sqlite3.Row) and other["id"] != turn["id"]:
                if (other["dialogue"], other["position"]) == (turn["dialogue"], turn["position"]):
                    said.append(Rating("choice", turn["id"], other=other["id"]))
                else:
                    left_out[APART] += 1
        return turn["dialogue"], said

    def find(self, message: ChatMessage, chat: str) -> sqlite3.Row | str | None:
        """The stored answer that a message is; None: there is none; or why none can be chosen."""
        chat = self.store.hash_outside(chat)
        statement = "SELECT turns.* FROM messages JOIN turns ON turns.id = turn WHERE hash = ? ORDER BY turn"
        named = self.store.rows(statement, (self.store.hash_outside(message.id),))
        if same := [turn for turn in named if self.chat(turn) in (None, chat)]:  # the copy of a chat has the same ids
            fitting = [turn for turn in same if not message.turns or self.has_text(turn, message.turns[-1])]
            return fitting[-1] if fitting else CHANGED
        *before, text = message.turns or ("",)
        fitting = [turn for turn in self.by_text.get(text, ()) if self.before(turn) == before]
        in_chat = [turn for turn in fitting if self.chat(turn) == chat]
        fitting = in_chat or [turn for turn in fitting if self.chat(turn) is None]
        return SEVERAL if len(fitting) > 1 else next(iter(fitting), None)

    def has_text(self, turn: sqlite3.Row, text: str) -> bool:
        """Whether a turn is what a message says; of an answer that was stopped, the page may have less."""
        return turn["id"] in self.stopped or answer_text(turn["text"]) == text

    def chat(self, turn: sqlite3.Row) -> str | None:
        """The hash of the id of the chat that a turn is in."""
        chats = self.store.rows("SELECT hash FROM chats WHERE dialogue = ?", (turn["dialogue"],))
        return chats[0]["hash"] if chats else None

    def before(self, turn: sqlite3.Row) -> list[str]:
        """What was said before an answer, as it is compared."""
        turns, events = (
            self.store.rows(f"SELECT * FROM {table} WHERE dialogue = ? ORDER BY {order}", (turn["dialogue"],))
            for table, order in (("turns", "position, id"), ("feedback", "id"))
        )
        said = turns_before(turns, turn, events)
        is_answer = [(len(said) - place) % 2 == 0 for place in range(len(said))]
        return [answer_text(text) if is_answer[place] else plain_text(text) for place, text in enumerate(said)]


class _Pulled:
    """What was stored of ratings before, by the hashes of their ids."""

    def __init__(self, store: Store, connection: sqlite3.Connection, result: ImportResult, origin: str | None):
        self.store, self.connection, self.result = store, connection, result
        self.origin = None if origin is None else store.hash_outside(f"Open WebUI at {origin}")

    def update(self, rating: ChatRating, dialogue: str, said: list[Rating]) -> None:
        """Store what a rating says now and did not say before, and withdraw what it does not say any more.

        A choice is of now, not of the rating's time: what the dialogue went on with since then stays as it was.
        """
        name = self.store.hash_outside(rating.id)
        past = self.events(name)
        standing = _standing(past)
        latest = max((event["created"] for event in past if event["kind"] == "thumb"), default=0.0)
        is_of_old_file = rating.created < latest or (self.origin is None and past and not standing)
        wanted = {(one.kind, one.turn, one.other): one for one in said}
        gone = {(kind, turn) for kind, turn, other in standing if (kind, turn, other) not in wanted}
        new = [one for key, one in wanted.items() if key[:2] in gone or not _says(standing.get(key), one)]
        if is_of_old_file or not (gone or new):
            self.result.num_known += len(standing) or 1
            if past:
                self.mark(past[-1]["id"])
            return
        self.withdraw(name, [event for event in standing.values() if (event["kind"], event["turn"]) in gone])
        (person,) = self.store.rows("SELECT person FROM dialogues WHERE id = ?", (dialogue,))[0]
        for one in new:
            created = rating.created if one.kind == "thumb" else time.time()
            self.add(name, (dialogue, one.turn, one.kind, one.value, one.text, one.other, person, created))
            self.result.events += 1

    def withdraw_missing(self, names: set[str]) -> None:
        """Withdraw what came from the same Open WebUI under other names than these."""
        statement = """SELECT DISTINCT rating.hash FROM pulled AS mark JOIN pulled AS rating ON rating.event = mark.event
            WHERE mark.hash = ?1 AND rating.hash != ?1"""
        for (name,) in self.store.rows(statement, (self.origin,)):
            if name not in names:
                self.withdraw(name, list(_standing(self.events(name)).values()))

    def withdraw(self, name: str, events: Iterable[sqlite3.Row]) -> None:
        """Withdraw events, unless the person has said something newer of the answer by another way."""
        counting = {
            event.id for one in {event["dialogue"] for event in events} for event in self.store.feedback(dialogue=one)
        }
        columns = ("dialogue", "turn", "kind", "person")
        for dialogue, turn, kind, person in {
            tuple(one[key] for key in columns) for one in events if one["id"] in counting
        }:
            self.add(name, (dialogue, turn, "withdrawn", None, kind, None, person, time.time()))
            self.result.withdrawn += 1

    def add(self, name: str, row: tuple[Any, ...]) -> None:
        event = insert_event(self.connection, row)
        self.connection.execute("INSERT INTO pulled VALUES (?, ?)", (name, event))
        self.mark(event)

    def mark(self, event: int) -> None:
        """An event is of this Open WebUI."""
        values = (self.origin, event)
        if self.origin and not self.store.rows("SELECT 1 FROM pulled WHERE hash = ? AND event = ?", values):
            self.connection.execute("INSERT INTO pulled VALUES (?, ?)", values)

    def events(self, name: str) -> list[sqlite3.Row]:
        """All that was ever stored of a rating."""
        statement = "SELECT feedback.* FROM pulled JOIN feedback ON feedback.id = event WHERE hash = ? ORDER BY event"
        return self.store.rows(statement, (name,))


def _standing(events: Iterable[sqlite3.Row]) -> dict[Key, sqlite3.Row]:
    """The events of a rating that were not withdrawn, the newest of each key."""
    standing: dict[Key, sqlite3.Row] = {}
    for event in events:
        if event["kind"] == "withdrawn":
            standing = {key: one for key, one in standing.items() if key[:2] != (event["text"], event["turn"])}
        else:
            standing[event["kind"], event["turn"], event["other"]] = event
    return standing


def _says(event: sqlite3.Row | None, rating: Rating) -> bool:
    return event is not None and (event["value"], event["text"]) == (rating.value, rating.text)
