"""Our own JSONL: a dialogue a line, with all of its turns and events, also those that newer ones replaced.

Format 2 has keys that only few lines have, so a line without them is written as format 1: of a dialogue `system`, `user`, `chat`,
of a turn `answer`, `message`, `is_stopped`, `is_copy`, of an event `pulled`. What requests were answered with is not exported.
"""

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

from rlhf_dialog.data.sources.rows import Row
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats.record import ImportedTurn, ImportResult, Judgement, Record
from rlhf_dialog.feedback.store.store import (
    ANSWER_ID,
    HASH,
    LATEST,
    SPEAKERS,
    Event,
    Rating,
    Store,
    StoredDialogue,
    StoredTurn,
    check_rating,
)
from rlhf_dialog.json_files import refuse_newer

FORMAT, VERSION = "rlhf-dialog-feedback", 2
PARTS = {  # key -> the column of the store's table that holds it, by the id of a dialogue, a turn or an event
    "system": "dialogue AS key, text FROM systems",
    "user": "dialogue AS key, hash FROM users",
    "chat": "dialogue AS key, hash FROM chats",
    "answer": "turn AS key, id FROM answers",
    "message": "turn AS key, hash FROM messages",
    "is_stopped": "turn AS key, 1 FROM stopped",
    "is_copy": "turn AS key, 1 FROM copies",
    "pulled": "event AS key, json_group_array(hash) FROM pulled GROUP BY event",
}
PARSED: dict[str, Callable[[Any], Any]] = {"is_stopped": bool, "is_copy": bool, "pulled": json.loads}  # from the column
MAX_POSITION = 10**6  # turns of a dialogue


def export_rows(store: Store) -> list[Row]:
    """Every dialogue of the store as a line's object."""
    events: dict[str, list[Event]] = {}
    with store.reading():
        parts = {name: dict(map(tuple, store.rows(f"SELECT {columns}"))) for name, columns in PARTS.items()}
        for event in store.feedback(newest=False):
            events.setdefault(event.dialogue, []).append(event)
        return [
            _row(store.bot, dialogue, store.turns(dialogue.id), events.get(dialogue.id, []), parts)
            for dialogue in store.dialogues()
        ]


def _row(
    bot: str, dialogue: StoredDialogue, turns: list[StoredTurn], events: list[Event], parts: dict[str, dict[Any, Any]]
) -> Row:
    def with_parts(one: StoredDialogue | StoredTurn | Event, names: tuple[str, ...]) -> dict[str, Any]:
        row = {key: value for key, value in dataclasses.asdict(one).items() if key != "dialogue"}
        found = {name: parts[name][one.id] for name in names if one.id in parts[name]}
        return row | {name: PARSED.get(name, str)(value) for name, value in found.items()}

    head = with_parts(dialogue, ("system", "user", "chat"))
    said = [with_parts(turn, ("answer", "message", "is_stopped", "is_copy")) for turn in turns]
    rated = [with_parts(event, ("pulled",)) for event in events]
    version = 2 if any(PARTS.keys() & one.keys() for one in (head, *said, *rated)) else 1
    return {
        **{"format": FORMAT, "format_version": version, "bot": bot},
        **{"dialogue": head, "turns": said, "feedback": rated},
    }


def read(rows: list[tuple[str, Row]]) -> ImportResult:
    """The dialogues of an export. Their token ids, log-probabilities and versions, which are another bot's, are not used.

    Raises UserError for a newer version, unknown keys, and values that cannot be.
    """
    imported = ImportResult("rlhf-dialog")
    for where, row in rows:
        try:
            refuse_newer(where, row["format_version"], VERSION)
            imported.records.append(_record(**row))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{where}: is damaged ({error!r:.200}); export again") from error
    return imported


def _record(format: str, format_version: int, bot: str, dialogue: Row, turns: list[Row], feedback: list[Row]) -> Record:
    """One line; its keys are the arguments, and those of its parts are the fields of the store's rows, and `PARTS`."""
    dialogue, of_dialogue = _split(dialogue, {"system": str, "user": HASH, "chat": HASH})
    head = StoredDialogue(**dialogue)
    kinds = {"answer": ANSWER_ID, "message": HASH, "is_stopped": bool, "is_copy": bool}
    stored = [
        (StoredTurn(dialogue=head.id, **turn), of_turn) for turn, of_turn in (_split(one, kinds) for one in turns)
    ]
    rated = [
        (Event(dialogue=head.id, **event), parts)
        for event, parts in (_split(one, {"pulled": list}) for one in feedback)
    ]
    said = []
    for turn, of_turn in stored:
        is_place = type(turn.position) is int and 0 <= turn.position < MAX_POSITION
        if not (is_place and turn.speaker in SPEAKERS and isinstance(turn.text, str)):
            raise ValueError(f"turn {turn.id!r}")
        said.append(ImportedTurn(turn.position, turn.speaker, turn.text, _time(turn.created), **of_turn))
    for name, length in ((head.id, 32), (head.person, 16), *((event.person, 16) for event, _ in rated)):
        if not re.fullmatch(f"[0-9a-f]{{{length}}}", name):
            raise ValueError(f"id {name!r}")
    if not isinstance(bot, str):
        raise TypeError(f"bot {bot!r}")
    places = {turn.id: place for place, (turn, _) in enumerate(stored)}
    answers = {turn.id for turn, of_turn in stored if turn.speaker == "agent" and not of_turn.get("is_copy")}
    judgements = []
    for event, of_event in rated:
        if not isinstance(event.text, str | None):
            raise TypeError(f"text {event.text!r}")
        check_rating(Rating(event.kind, event.turn, event.value, event.text, event.other))
        if not {event.turn, event.other} - {None} <= answers:
            raise ValueError(f"feedback {event.id!r} is not on an answer")
        place, other = (None if number is None else places[number] for number in (event.turn, event.other))
        pulled, created = tuple(map(_hash, of_event.get("pulled", ()))), _time(event.created)
        judgements.append(Judgement(event.kind, place, event.value, event.text, other, event.person, created, pulled))
    return Record(said, judgements, head.id, head.person, _time(head.started), head.id, bot, **of_dialogue)


def _split(row: Row, parts: dict[str, Any]) -> tuple[Row, dict[str, Any]]:
    """The columns of the store's row, and those of `parts`, each of which is of a type, or matches a pattern."""
    own = {key: value for key, value in row.items() if key in parts and value is not None}
    for key, value in own.items():
        wanted = parts[key]
        if not (re.fullmatch(wanted, value) if isinstance(wanted, str) else type(value) is wanted):
            raise ValueError(f"{key} {value!r}")
    return {key: value for key, value in row.items() if key not in parts}, own


def _hash(text: Any) -> str:
    if not re.fullmatch(HASH, text):
        raise ValueError(f"hash {text!r}")
    return str(text)


def _time(seconds: Any) -> float:
    """Raises ValueError for what is no time in seconds of the epoch: text, Infinity, NaN, a year beyond 9999."""
    if type(seconds) not in (int, float) or not 0 <= seconds <= LATEST:
        raise ValueError(f"time {seconds!r}")
    return float(seconds)
