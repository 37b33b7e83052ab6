"""One dialogue of another program, with what people said of its answers.

Ids of the other program (`user`, `chat`, `message`, `pulled`) are stored hashed: of an export of a bot they are hashes already.
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ImportedTurn:
    """One utterance; several of the agent at one position are alternatives."""

    position: int
    speaker: str  # user, agent
    text: str
    created: float | None = None
    answer: str | None = None  # its id for programs
    message: str | None = None
    is_stopped: bool = False
    is_copy: bool = False


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
    pulled: tuple[str, ...] = ()  # ids of this rating


@dataclass(frozen=True)
class Record:
    turns: list[ImportedTurn]
    judgements: list[Judgement]
    group: str  # the records of one group are held out together, or not at all
    person: str | None = None  # who began it
    started: float | None = None
    id: str | None = None  # of the dialogue, when it comes from a bot
    bot: str | None = None  # which one: the people of this bot itself are hashes already
    system: str | None = None  # the message that began it
    user: str | None = None  # whose it is, where several share `person`
    chat: str | None = None


@dataclass
class ImportResult:
    """What was read of a file, and what it has added to a store.

    `left_out`: how many rows, by the reason; `unread`: names of columns or parts of a text, each with the number of rows that
    have it; `num_known`: dialogues and events that were there already; `withdrawn`: events that take an earlier one back.
    """

    format: str
    records: list[Record] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    unread: Counter[str] = field(default_factory=Counter)
    dialogues: int = 0
    events: int = 0
    num_known: int = 0
    withdrawn: int = 0
