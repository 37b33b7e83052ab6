"""Our own JSONL: a dialogue a line, with all of its turns and events, also those that newer ones replaced."""

import dataclasses
import re
from typing import Any

from rlhf_dialog.data.sources.rows import Row
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats.record import ImportedTurn, ImportResult, Judgement, Record
from rlhf_dialog.feedback.store.store import (
    LATEST,
    SPEAKERS,
    Event,
    Rating,
    Store,
    StoredDialogue,
    StoredTurn,
    check_rating,
)

FORMAT, VERSION = "rlhf-dialog-feedback", 1
MAX_POSITION = 10**6  # turns of a dialogue


def export_rows(store: Store) -> list[Row]:
    """Every dialogue of the store as a line's object."""
    events: dict[str, list[Event]] = {}
    with store.reading():
        for event in store.feedback(newest=False):
            events.setdefault(event.dialogue, []).append(event)
        return [
            {
                **{"format": FORMAT, "format_version": VERSION, "bot": store.bot},
                "dialogue": dataclasses.asdict(dialogue),
                "turns": [_without_dialogue(turn) for turn in store.turns(dialogue.id)],
                "feedback": [_without_dialogue(event) for event in events.get(dialogue.id, [])],
            }
            for dialogue in store.dialogues()
        ]


def _without_dialogue(one: Any) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(one).items() if key != "dialogue"}


def read(rows: list[tuple[str, Row]]) -> ImportResult:
    """The dialogues of an export. Their token ids, log-probabilities and versions, which are another bot's, are not used.

    Raises UserError for a newer version, unknown keys, and values that cannot be.
    """
    imported = ImportResult("rlhf-dialog")
    for where, row in rows:
        version = row.get("format_version")
        if not isinstance(version, int) or version > VERSION:
            raise UserError(
                f"{where}: has format version {version}, but this program knows versions up to {VERSION}; update rlhf-dialog"
            )
        try:
            imported.records.append(_record(**row))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{where}: is damaged ({error!r:.200}); export again") from error
    return imported


def _record(format: str, format_version: int, bot: str, dialogue: Row, turns: list[Row], feedback: list[Row]) -> Record:
    """One line; its keys are the arguments, and those of its parts are the fields of the store's rows."""
    head = StoredDialogue(**dialogue)
    stored = [StoredTurn(dialogue=head.id, **turn) for turn in turns]
    events = [Event(dialogue=head.id, **event) for event in feedback]
    for turn in stored:
        is_place = type(turn.position) is int and 0 <= turn.position < MAX_POSITION
        if not (is_place and turn.speaker in SPEAKERS and isinstance(turn.text, str)):
            raise ValueError(f"turn {turn.id!r}")
    for name, length in ((head.id, 32), (head.person, 16), *((event.person, 16) for event in events)):
        if not re.fullmatch(f"[0-9a-f]{{{length}}}", name):
            raise ValueError(f"id {name!r}")
    if not isinstance(bot, str):
        raise TypeError(f"bot {bot!r}")
    places = {turn.id: place for place, turn in enumerate(stored)}
    answers = {turn.id for turn in stored if turn.speaker == "agent"}
    judgements = []
    for event in events:
        if not isinstance(event.text, str | None):
            raise TypeError(f"text {event.text!r}")
        check_rating(Rating(event.kind, event.turn, event.value, event.text, event.other))
        if not {event.turn, event.other} - {None} <= answers:
            raise ValueError(f"feedback {event.id!r} is not on an answer")
        place, other = (None if number is None else places[number] for number in (event.turn, event.other))
        created = _time(event.created)
        judgements.append(Judgement(event.kind, place, event.value, event.text, other, event.person, created))
    said = [ImportedTurn(turn.position, turn.speaker, turn.text, _time(turn.created)) for turn in stored]
    return Record(said, judgements, head.id, head.person, _time(head.started), id=head.id, bot=bot)


def _time(seconds: Any) -> float:
    """Raises ValueError for what is no time in seconds of the epoch: text, Infinity, NaN, a year beyond 9999."""
    if type(seconds) not in (int, float) or not 0 <= seconds <= LATEST:
        raise ValueError(f"time {seconds!r}")
    return float(seconds)
