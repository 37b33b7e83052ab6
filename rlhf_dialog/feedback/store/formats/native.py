"""Our own JSONL: a dialogue a line, with all of its turns and events, also those that newer ones replaced."""

import dataclasses
import logging
import re
from typing import Any

from rlhf_dialog.data.sources.rows import Row
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats.record import ImportedTurn, ImportResult, Judgement, Record
from rlhf_dialog.feedback.store.store import SPEAKERS, Event, Rating, Store, StoredDialogue, StoredTurn, check_rating

logger = logging.getLogger(__name__)
FORMAT, VERSION = "rlhf-dialog-feedback", 1
MAX_POSITION = 10**6  # turns of a dialogue
HEAD = ("format", "format_version", "bot", "dialogue", "turns", "feedback")
COLUMNS = {
    name: tuple(field.name for field in dataclasses.fields(cls))
    for name, cls in {"dialogue": StoredDialogue, "turns": StoredTurn, "feedback": Event}.items()
}


def export_rows(store: Store) -> list[Row]:
    """Every dialogue of the store as a line's object. Feedback on what is not in the store is left out, with a warning."""
    events: dict[str, list[Event]] = {}
    exported: list[Row] = []
    num_kept = 0
    with store.reading():
        all_events = store.feedback(newest=False)
        for event in all_events:
            events.setdefault(event.dialogue, []).append(event)
        for dialogue in store.dialogues():
            turns = store.turns(dialogue.id)
            there = {None, *(turn.id for turn in turns if turn.speaker == "agent")}
            whole = [event for event in events.get(dialogue.id, []) if {event.turn, event.other} <= there]
            num_kept += len(whole)
            exported.append(
                {
                    **{"format": FORMAT, "format_version": VERSION, "bot": store.bot},
                    "dialogue": dataclasses.asdict(dialogue),
                    "turns": [_without_dialogue(turn) for turn in turns],
                    "feedback": [_without_dialogue(event) for event in whole],
                }
            )
    if lost := len(all_events) - num_kept:
        logger.warning("%s: left out: %d ratings whose answer is not in the store", store.path, lost)
    return exported


def _without_dialogue(one: Any) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(one).items() if key != "dialogue"}


def is_native(row: Row) -> bool:
    """Whether the object is a line of ours."""
    return row.get("format") == FORMAT


def read(rows: list[tuple[str, Row]]) -> ImportResult:
    """The dialogues of an export. Their token ids, log-probabilities and versions, which are another bot's, are not read.

    Raises UserError for a newer version, unknown keys, and values that cannot be.
    """
    imported = ImportResult("rlhf-dialog")
    for where, row in rows:
        if not isinstance(row.get("format_version"), int) or row["format_version"] > VERSION:
            raise UserError(
                f"{where}: has format version {row.get('format_version')}, but this program knows versions up to {VERSION}; "
                "update rlhf-dialog"
            )
        try:
            _check_keys(row, where)
            imported.records.append(_record(row))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{where}: is damaged ({error!r:.200}); export again") from error
    return imported


def _check_keys(row: Row, where: str) -> None:
    parts = [("the line", row, HEAD), ("the dialogue", row.get("dialogue") or {}, COLUMNS["dialogue"])]
    parts += [(name, one, COLUMNS[name]) for name in ("turns", "feedback") for one in row.get(name) or []]
    for name, one, known in parts:
        if unknown := [key for key in one if key not in known]:
            raise UserError(
                f"{where}: {name} has the unknown keys {', '.join(map(repr, unknown[:10]))}; known are {', '.join(known)}; "
                "if a newer rlhf-dialog wrote the file, update"
            )


def _record(row: Row) -> Record:
    head, places = row["dialogue"], {}
    turns = []
    for number, turn in enumerate(row["turns"]):
        if turn["speaker"] not in SPEAKERS or not (
            type(turn["position"]) is int and 0 <= turn["position"] < MAX_POSITION
        ):
            raise ValueError(f"turn of {turn['speaker']!r} at position {turn['position']!r}")
        places[turn["id"]] = number
        turns.append(ImportedTurn(turn["position"], turn["speaker"], _text(turn["text"]), float(turn["created"])))
    judgements = [_judgement(one, places, turns) for one in row["feedback"]]
    if not re.fullmatch("[0-9a-f]{32}", head["id"]):
        raise ValueError(f"id {head['id']!r}")
    person, started, name = _person(head["person"]), float(head["started"]), head["id"]
    return Record(turns, judgements, name, person, started, id=name, bot=_text(row["bot"]))


def _judgement(event: Row, places: dict[int, int], turns: list[ImportedTurn]) -> Judgement:
    check_rating(Rating(event["kind"], event["turn"], event["value"], event["text"], event["other"]))
    turn, other = (None if event[key] is None else places[event[key]] for key in ("turn", "other"))
    if any(place is not None and turns[place].speaker != "agent" for place in (turn, other)):
        raise ValueError("feedback on a turn of the user")
    person, created = _person(event["person"]), float(event["created"])
    return Judgement(event["kind"], turn, event["value"], event["text"], other, person, created)


def _person(value: Any) -> str:
    if not re.fullmatch("[0-9a-f]{16}", value):
        raise ValueError(f"person {value!r}")
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value
