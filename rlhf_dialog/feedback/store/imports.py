"""Feedback from files: our own JSONL, TRL's columns, ratings in Open WebUI. The same file twice adds nothing.

An imported dialogue has no token ids and no log-probabilities, so nothing takes it for an answer of one of the bot's versions.
"""

import hashlib
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

from rlhf_dialog.data.sources import load_rows
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats import native, open_webui, trl
from rlhf_dialog.feedback.store.formats.record import ImportResult, Record
from rlhf_dialog.feedback.store.store import (
    SAMPLES,
    Store,
    insert_event,
    insert_parts,
    insert_turn,
    is_heldout,
    mark_turn,
    storable,
)
from rlhf_dialog.json_files import damage_as_user_error

KNOWN = (
    "this program's export (JSONL), TRL's columns (prompt, completion, label; prompt, chosen, rejected), and Open WebUI's export "
    "of feedback (JSON), whose ratings are laid on answers that are stored"
)


def import_file(
    store: Store,
    path: Path,
    name: str | None = None,
    ignored: tuple[str, ...] = (),
    is_sender: open_webui.IsSender = lambda *_: True,
) -> ImportResult:
    """Add the dialogues and the feedback of a file or `save_to_disk` folder: all of it, or nothing.

    `name` (by default that of the format) is where they are from: the source is `import:NAME`, and so is the person, where the
    file has no ids of people. `ignored` are columns to leave out. `is_sender`: see `open_webui.lay_ratings`. Raises UserError
    for a file that cannot be read, a format or a column that is not known, and a row that cannot be used.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; name a file to import")
    placed = load_rows(str(path), "train")
    rows = [(where, {key: value for key, value in row.items() if key not in ignored}) for where, row in placed]
    first = rows[0][1]
    if open_webui.is_export(first):
        if name is not None:
            raise UserError("--name: ratings in Open WebUI are laid on answers that are stored already; leave it out")
        return open_webui.lay_ratings(store, [row for _, row in rows], is_sender)
    with damage_as_user_error(f"{path}: is damaged, or not of the format that its columns say: ", "; export it again"):
        form = next((form for form, columns in trl.NEEDED.items() if set(columns) <= set(first)), None)
        if first.get("format") == native.FORMAT:
            result = native.read(rows)
        elif form is not None:
            result = trl.read(rows, form)
        else:
            names = ", ".join(f"'{key!s:.40}'" for key in list(first)[:20])
            raise UserError(f"{rows[0][0]}: the columns {names} are those of no known format; known are {KNOWN}")
    with store.writing() as connection:
        for record in result.records:
            _add(store, connection, record, name or result.format, result)
    return result


def _add(store: Store, connection: sqlite3.Connection, record: Record, name: str, added: ImportResult) -> None:
    source, now = storable(f"import:{name}"), time.time()
    dialogue = record.id or _id(source, record)
    people = {
        person: _person(store, record, person, source)
        for person in {record.person, *(judgement.person for judgement in record.judgements)}
    }
    if connection.execute("SELECT 1 FROM dialogues WHERE id = ?", (dialogue,)).fetchone():
        added.num_known += 1
    else:
        row = (dialogue, record.started or now, people[record.person], source, is_heldout(dialogue))
        connection.execute("INSERT INTO dialogues VALUES (?, ?, ?, ?, ?)", row)
        user, chat = (_outside(store, record, one) for one in (record.user, record.chat))
        insert_parts(connection, dialogue, record.system, user, chat)
        added.dialogues += 1
    places = _add_turns(store, connection, dialogue, record, now)
    stored_events = _known_events(connection, dialogue)
    for judgement in record.judgements:
        turn, other = (None if place is None else places[place] for place in (judgement.turn, judgement.other))
        text = judgement.text and storable(judgement.text)
        event = (turn, judgement.kind, judgement.value, text, other, people[judgement.person])
        if (*event, judgement.created) in stored_events:
            added.num_known += 1
        else:
            number = insert_event(connection, (dialogue, *event, judgement.created or now))
            for one in judgement.pulled:
                connection.execute("INSERT INTO pulled VALUES (?, ?)", (_outside(store, record, one), number))
            stored_events |= {(*event, judgement.created), (*event, None)}
            added.events += 1


def _person(store: Store, record: Record, person: str | None, source: str) -> str:
    """The hash of a person: of their id in the other program, of the source where there is none, or of this very bot.

    Ratings that were made up stay marked as such.
    """
    if person is not None and (record.bot == store.bot or person == SAMPLES):
        return person
    return store.hash_person(source if person is None else f"{record.bot or source}:{person}")


def _outside(store: Store, record: Record, name: str | None) -> str | None:
    """The hash of an id of the other program; that of this very bot stays."""
    if name is None or record.bot == store.bot:
        return name
    return store.hash_outside(name if record.bot is None else f"{record.bot}:{name}")


def _id(source: str, record: Record) -> str:
    """The dialogue's id: a hash of what it is, among those that put the whole group on one side of the held-out line."""

    def digest(*parts: Any) -> str:
        return hashlib.sha256(json.dumps([source, *parts]).encode()).hexdigest()[:32]

    wanted = is_heldout(digest(record.group))
    content = [record.group, [(turn.position, turn.speaker, turn.text) for turn in record.turns]]
    content += [] if record.system is None else [record.system]
    return next(one for number in range(10**6) if is_heldout(one := digest(content, number)) == wanted)


def _add_turns(store: Store, connection: sqlite3.Connection, dialogue: str, record: Record, now: float) -> list[int]:
    """Insert the turns that the dialogue does not have; returns the ids of all."""
    there: dict[tuple[Any, ...], list[int]] = {}
    for row in connection.execute("SELECT * FROM turns WHERE dialogue = ? ORDER BY id", (dialogue,)):
        there.setdefault((row["position"], row["speaker"], row["text"]), []).append(row["id"])
    places = []
    for turn in record.turns:
        key = (turn.position, turn.speaker, storable(turn.text))
        if there.get(key):
            places.append(there[key].pop(0))
        else:
            number = insert_turn(connection, (dialogue, *key, None, None, None, None, turn.created or now))
            message = _outside(store, record, turn.message)
            is_known = connection.execute("SELECT 1 FROM answers WHERE id = ?", (turn.answer,)).fetchone()
            mark_turn(connection, number, None if is_known else turn.answer, message, turn.is_stopped, turn.is_copy)
            places.append(number)
    return places


def _known_events(connection: sqlite3.Connection, dialogue: str) -> set[tuple[Any, ...]]:
    """What the dialogue's events say, each with its time, and without it for files that have none."""
    rows = connection.execute("SELECT * FROM feedback WHERE dialogue = ?", (dialogue,)).fetchall()
    events = [tuple(row[key] for key in ("turn", "kind", "value", "text", "other", "person")) for row in rows]
    return {(*event, time) for event, row in zip(events, rows, strict=True) for time in (row["created"], None)}
