"""One dialogue of another program, with what people said of its answers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_dialog.data.sources.messages import TEXT_KEYS, USER_ROLES, Messages, first_filled
from rlhf_dialog.errors import UserError, nearest


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


@dataclass
class ImportResult:
    """What was read: the name of the format, its records, how many rows were left out, by the reason, and what is not read.

    `unread`: names of columns or parts of a text, each with the number of rows that have it.
    """

    name: str
    records: list[Record] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    unread: Counter[str] = field(default_factory=Counter)

    def leave_out(self, reason: str) -> None:
        """Count a row that cannot be used."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


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


def speakers(messages: Messages) -> list[Utterance]:
    """Speaker and text of messages; system messages, which a store does not have, are left out."""
    roles = ("user" if role in USER_ROLES else "agent" for role in messages.roles)
    return list(zip(roles, messages.turns, strict=True))


def message_text(item: Any) -> str | None:
    """The text of a message: its content, or the parts of it, stripped; None when it has another content or none."""
    value = item
    if isinstance(item, dict):
        key = first_filled(TEXT_KEYS, item)
        value = item[key] if key else None
    if isinstance(value, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in value):
        value = " ".join(part["text"].strip() for part in value)
    return value.strip() or None if isinstance(value, str) else None


def check_columns(row: Iterable[str], columns: Iterable[str], form: str, where: str) -> None:
    """Raises UserError that names the columns which are not known."""
    columns = list(columns)
    if unknown := [name for name in row if name not in columns]:
        shown = ", ".join(f"'{name!s:.40}'" for name in unknown[:10])
        raise UserError(
            f"{where}: {form} has no column {shown}{nearest(unknown[0], columns)}; known are {', '.join(columns)}; leave others "
            f"out with --ignore {','.join(map(str, unknown[:10]))}"
        )
