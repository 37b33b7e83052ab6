"""One dialogue of another program, with what people said of its answers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_dialog.data.sources.messages import (
    ROLE_KEYS,
    TEXT_KEYS,
    first_filled,
    is_system,
    read_role,
    uses_tools,
)
from rlhf_dialog.errors import UserError, nearest

USER_ROLES = ("user", "human")
BAD_SHARE = 0.1  # of the rows that may have no text where one must be


@dataclass(frozen=True)
class ImportedTurn:
    """One utterance; several of the agent at one position are alternatives."""

    position: int
    speaker: str  # user, agent
    text: str
    created: float | None = None


@dataclass(frozen=True)
class Judgement:
    """One event; `turn` and `other` are places in the record's turns, `person` is an id of the other program."""

    kind: str
    turn: int | None
    value: float | None = None
    text: str | None = None
    other: int | None = None
    person: str | None = None
    created: float | None = None


@dataclass(frozen=True)
class Record:
    """A dialogue to import.

    >>> record = make_record([("user", "Is it far ?")], ["Two streets ."], [Judgement("thumb", 0, 1)], group="17", where="row 1")
    >>> [turn.text for turn in record.turns], record.judgements[0].turn
    (['Is it far ?', 'Two streets .'], 1)
    """

    turns: list[ImportedTurn]
    judgements: list[Judgement]
    group: str  # the records of one group are held out together, or not at all
    where: str  # its place, for messages
    person: str | None = None  # who began it
    started: float | None = None
    id: str | None = None  # of the dialogue, when it comes from a bot
    bot: str | None = None  # which one: the people of this bot itself are hashes already


class LeftOut(Exception):
    """A row that is left out by design: the reason, as it is counted."""


class BadRow(UserError):
    """A row that has no text where one must be, or two equal sides."""


@dataclass
class ImportResult:
    """What was read: the name of the format, its records, how many rows were left out, by the reason, and what is not read.

    `bad`: the messages of rows without a text where one must be; `unread`: names of columns, keys or parts of a text, each with
    the number of rows that have it.
    """

    name: str
    records: list[Record] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)

    def leave_out(self, reason: str) -> None:
        """Count a row that cannot be used."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def check_bad(self, num_rows: int) -> None:
        """Count the bad rows as left out. Raises UserError, which lists the first five, when they are more than a tenth."""
        if len(self.bad) > BAD_SHARE * num_rows:
            shown = "; ".join(self.bad[:5])
            raise UserError(
                f"{len(self.bad)} of {num_rows} rows cannot be used, and only up to {BAD_SHARE:.0%} may be left out; correct or "
                f"remove them. The first: {shown}"
            )
        if self.bad:
            self.left_out[f"rows with an empty text or two equal sides, the first: {self.bad[0]}"] = len(self.bad)


Utterance = tuple[str, str]  # speaker and text


def make_record(
    prompt: Sequence[Utterance], answers: Sequence[str], judgements: Sequence[Judgement], *, group: str, where: str
) -> Record:
    """A record of a prompt and its answers, which are alternatives; `turn` and `other` of the judgements count the answers."""
    turns = [ImportedTurn(number, *said) for number, said in enumerate(prompt)]
    turns += [ImportedTurn(len(prompt), "agent", answer) for answer in answers]

    def place(answer: int | None) -> int | None:
        return None if answer is None else len(prompt) + answer

    moved = [
        Judgement(one.kind, place(one.turn), one.value, one.text, place(one.other), one.person, one.created)
        for one in judgements
    ]
    return Record(turns, moved, group, where, person=judgements[0].person if judgements else None)


def read_messages(messages: Any, where: str, unread: set[str]) -> list[Utterance]:
    """Speaker and text of messages (`{"role": "user", "content": ...}`); a string is one message of the user.

    System messages are no turns; `unread` gets their name, and the keys of messages that hold text and are not read. Raises
    LeftOut for tools and images, BadRow for a message without a text, UserError for what is not a message.
    """
    items = [messages] if isinstance(messages, str) else messages
    if not isinstance(items, list):
        raise UserError(f"{where}: found {str(messages)[:60]!r}, wanted a text or a list of messages")
    turns = []
    for item in items:
        role, text, content = read_role(item), message_text(item), _content(item)
        if isinstance(item, dict):
            _check_parts(item, content, unread)
        if is_system(item):
            unread.add("system messages")
            continue
        if content is None or (isinstance(content, str) and not text):
            raise BadRow(f"{where}: found {str(item)[:60]!r}, wanted a message with a text")
        if text is None or (isinstance(item, dict) and role is None):
            raise UserError(
                f"{where}: found {str(item)[:60]!r}, wanted a message with a role and a text; remove the row"
            )
        turns.append(("user" if role is None or role in USER_ROLES else "agent", text))
    return turns


def _check_parts(message: dict[str, Any], content: Any, unread: set[str]) -> None:
    """Raises LeftOut for a message that uses tools or has parts that are no text; names the keys that are not read."""
    if uses_tools(message):
        raise LeftOut("rows with messages or calls of tools")
    if isinstance(content, list) and any(
        isinstance(one, dict) and one.get("type", "text") != "text" for one in content
    ):
        raise LeftOut("rows with images or other parts that are no text")
    known = (*TEXT_KEYS, *ROLE_KEYS)
    unread.update(f"'{key:.40}' of messages" for key, value in message.items() if key not in known and value)


def message_text(item: Any) -> str | None:
    """The text of a message: its content, or the parts of it, stripped; None when it has another content or none."""
    value = _content(item)
    if isinstance(value, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in value):
        value = " ".join(part["text"].strip() for part in value)
    return value.strip() or None if isinstance(value, str) else None


def _content(item: Any) -> Any:
    """The content of a message; what is no message is its own."""
    if not isinstance(item, dict):
        return item
    key = first_filled(TEXT_KEYS, item)
    return item[key] if key else None


def check_columns(row: Iterable[str], columns: Iterable[str], form: str, where: str) -> None:
    """Raises UserError that names the columns which are not known."""
    columns = list(columns)
    if unknown := [name for name in row if name not in columns]:
        shown = ", ".join(f"'{name!s:.40}'" for name in unknown[:10])
        raise UserError(
            f"{where}: {form} has no column {shown}{nearest(unknown[0], columns)}; known are {', '.join(columns)}; leave others "
            f"out with --ignore {','.join(map(str, unknown[:10]))}"
        )
