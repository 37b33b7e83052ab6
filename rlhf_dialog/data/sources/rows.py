"""Rows of any table or JSON file -> dialogues. The first row decides which of five forms the data has."""

import itertools
import logging
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rlhf_dialog.data.sources.messages import (
    ROLE_KEYS,
    TEXT_KEYS,
    Messages,
    drop_tools,
    first_filled,
    said_by_turns,
    say_left_out,
    split_messages,
    uses_tools,
)
from rlhf_dialog.data.sources.record import DialogueRecord, act_number, checked_record, checked_text, is_null, kind
from rlhf_dialog.errors import UserError, nearest

logger = logging.getLogger(__name__)
Row = dict[str, Any]
Rows = Iterable[tuple[str, Row]]  # the place of the row, for messages, and the row


CAMREST = "dial"
REQUESTED = "?"  # the value of a slot that is requested


def _read_camrest(rows: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[DialogueRecord]:
    """Dialogues of CamRest676, one a row, which the user begins and the system ends.

    `meta` has `goal` (`text`, `constraints`, `requests`) and `dialogue_acts`: for each turn its acts as text, such as
    `inform(food=thai) request(phone)`, empty where none is annotated. Raises UserError for a row without these parts.
    """
    for where, row in rows:
        try:
            pairs = [(pair["usr"], pair["sys"]) for pair in row[CAMREST]]
            turns = [text for user, system in pairs for text in (user["transcript"], system["sent"])]
            acts = [_acts_as_text(side["dialog_act"]) for pair in pairs for side in pair]
            goal = {"text": row["goal"]["text"], "constraints": row["goal"]["info"], "requests": row["goal"]["reqt"]}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{where}: is not a dialogue of CamRest676: {type(error).__name__}: {error}; wanted '{CAMREST}' with `usr` and "
                "`sys` in each item, and 'goal'"
            ) from None
        yield checked_record(turns, None, where, meta={"goal": goal, "dialogue_acts": acts})


def _acts_as_text(annotated: dict[str, list[list[str]]]) -> str:
    found = [(intent, slot, value) for intent, pairs in annotated.items() for slot, value in pairs]
    return " ".join(
        f"{intent}({slot})" if value == REQUESTED else f"{intent}({slot}={str(value).lower()})"
        for intent, slot, value in found
    )


class Cells(Row):
    """A row of cells that are text, and may hold a list as text."""


TURN_KEYS = ("dialog", "dialogue", "utterances", "turns", "messages", "conversation", "conversations")
ACT_KEYS = ("act", "acts", "act_label_text", "act_label")
ID_KEYS = ("dialog_id", "dialogue_id", "conversation_id", "conv_id", "id")
PROMPT_KEYS = ("prompt", "question", "instruction")
REPLY_KEYS = ("reference", "response", "completion", "answer", "output")
INPUT = "input"  # what follows an instruction, after a blank line
LIST_KEYS = (*TURN_KEYS, *ACT_KEYS, "prompt", "reference", "references")  # the columns whose cells may hold a list


def read_records(rows: Rows, where: str) -> list[DialogueRecord]:
    """All dialogues, in order. Raises UserError for the first row that cannot be read, or when there are no rows."""
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        raise UserError(f"{where}: there are no rows; give at least one dialogue")
    form, rows = _form(*first), itertools.chain([first], rows)
    records = list(form(rows if form is _utterances else drop_tools(rows)))
    if form is _prompts:
        _name_unused_text(records, where)
    return records


def _form(where: str, row: Row) -> Callable[[Rows], Iterator[DialogueRecord]]:
    turns, act = first_filled(TURN_KEYS, row), first_filled(ACT_KEYS, row)
    if isinstance(row.get(CAMREST), list):
        return _read_camrest
    if turns and isinstance(row[turns], list):
        has_one_act = act is not None and not is_null(row[act]) and not isinstance(row[act], list)
        return _growing if has_one_act else _dialogues
    if "prompt" in row:
        return _prompts
    if first_filled((*TURN_KEYS, *TEXT_KEYS), row) and first_filled(ID_KEYS, row):
        return _utterances
    if first_filled(PROMPT_KEYS, row):
        return _prompts
    if turns:
        return _dialogues
    raise _no_turns(where, row)


def _dialogues(rows: Rows) -> Iterator[DialogueRecord]:
    """Every row is a dialogue."""
    for where, row in rows:
        key, act = first_filled(TURN_KEYS, row), first_filled(ACT_KEYS, row)
        if key is None:
            raise _no_turns(where, row)
        items = _list_in(row, key, where, "with one item per turn")
        messages = split_messages(items, where)
        if act is None or is_null(row[act]):
            acts = said_by_turns(items, ACT_KEYS)
        else:
            acts = _list_in(row, act, where, "with one act per turn")
        record = _record(messages, acts, where, _others(row, {key, act, "references"}))
        versions = row.get("references")
        if is_null(versions):
            versions = said_by_turns(items, ("references",))
        record.references = _versions(versions, len(record.turns), where)
        yield record


def _prompts(rows: Rows) -> Iterator[DialogueRecord]:
    """Every row is one prompt, with or without references and an act of the reply."""
    for where, row in rows:
        key, reply = first_filled(PROMPT_KEYS, row) or PROMPT_KEYS[0], first_filled(REPLY_KEYS, row)
        (prompt, used), act = prompt_in(row, key), first_filled(ACT_KEYS, row)
        if not isinstance(prompt, str | list):
            raise UserError(f"{where}: '{key}' holds {kind(prompt)}, wanted a string or a list of turns")
        messages = split_messages([prompt] if isinstance(prompt, str) else prompt, where)
        record = _record(messages, None, where, _others(row, {act, reply, "references", *used}))
        record.is_prompt = True
        record.acts = None if act is None or is_null(row[act]) else [act_number(row[act], f"'{act}'", where)]
        replies = [text for name in (reply, "references") if name for text in _replies(row.get(name), name, where)]
        record.references = [replies] if replies else None
        yield record


def _record(messages: Messages, acts: list[Any] | None, where: str, meta: Row) -> DialogueRecord:
    """The record of these messages. Raises UserError as `checked_record` does."""
    record = checked_record(messages.turns, acts, where, meta=meta | messages.meta)
    record.roles = messages.roles if any(messages.roles) else None
    record.system = messages.system
    return record


def prompt_in(row: Row, key: str) -> tuple[Any, set[str]]:
    """The prompt in the column `key`, and the columns that it is in: an `instruction` may have an `input`."""
    prompt, more = row.get(key), row.get(INPUT)
    if key != "instruction" or not isinstance(prompt, str) or not (more is None or isinstance(more, str)):
        return prompt, {key}
    return f"{prompt.strip()}\n\n{(more or '').strip()}".strip(), {key, INPUT}


def _replies(value: Any, key: str, where: str) -> list[str]:
    """The replies in a column: a string, a list of strings, or one message."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = split_messages(value, where).turns
        if len(value) != 1:
            raise UserError(f"{where}: '{key}' holds {len(value)} messages, wanted one, which is the reply")
    return _texts(value, f"'{key}'", where)


def _name_unused_text(prompts: list[DialogueRecord], where: str) -> None:
    """A warning where prompts have no reference, with the column that has most text of theirs: it may hold the replies."""
    without = [prompt for prompt in prompts if not prompt.references]
    sizes: Counter[str] = Counter()
    for name, value in (cell for prompt in without for cell in prompt.meta.items()):
        if isinstance(value, str) and " " in value and name not in ID_KEYS and "system" not in name.lower():
            sizes[name] += len(value)
    for name, _ in sizes.most_common(1):
        remedy = "if it holds the replies, name it with columns: {reference: ...}"
        text = "%s: %d of %d prompts have no reference, and the text column '%s' is not used; %s"
        logger.warning(text, where, len(without), len(prompts), name, remedy)


def _utterances(rows: Rows) -> Iterator[DialogueRecord]:
    """Every row holds one turn; consecutive rows with the same id are one dialogue."""
    seen: set[Any] = set()
    with_tools: list[str] = []
    for ident, group in itertools.groupby(rows, key=_ident):
        members = list(group)
        where = members[0][0]
        if ident in seen:
            raise UserError(
                f"{where}: dialogue {reprlib.repr(ident)} continues after rows of another dialogue; sort the rows "
                "so that those of one dialogue follow each other, or give every dialogue its own id"
            )
        seen.add(ident)
        if any(uses_tools(row) for _, row in members):
            with_tools.append(where)
        else:
            yield _gather(members, f"{where} (dialogue {reprlib.repr(ident)})")
    say_left_out(len(with_tools), f"of {len(seen)} dialogues", "".join(with_tools[:1]))


def _gather(members: list[tuple[str, Row]], where: str) -> DialogueRecord:
    whole = Messages()
    acts: list[Any] = []
    for member, row in members:
        text, act = first_filled((*TURN_KEYS, *TEXT_KEYS), row), first_filled(ACT_KEYS, row)
        if text is None:
            raise _no_turns(member, row)
        message = {"text": row[text]} | {key: row[key] for key in ROLE_KEYS if key in row}
        part = split_messages([message], member)
        whole.system += [(len(whole.turns), system) for _, system in part.system]
        whole.turns += [checked_text(turn, f"'{text}'", member) for turn in part.turns]
        whole.roles += part.roles
        acts += [row[act] if act else None] * len(part.turns)
    return _record(whole, acts, where, {})


def _ident(place: tuple[str, Row]) -> str | int | float:
    where, row = place
    key = first_filled(ID_KEYS, row)
    ident = row[key] if key else None
    if is_null(ident) or not isinstance(ident, str | int | float):
        raise UserError(f"{where}: the dialogue id holds {kind(ident)}, wanted a number or a string in every row")
    return ident


def _growing(rows: Rows) -> Iterator[DialogueRecord]:
    """Row k of a dialogue holds its first k turns and the act of the last one."""
    messages, start = Messages(), ""
    acts: list[Any] = []
    for where, row in rows:
        so_far, act = _turns_so_far(where, row)
        if len(so_far.turns) == 1 and messages.turns:
            yield _record(messages, acts, start, {})
            messages, acts = Messages(), []
        if so_far.turns[:-1] != messages.turns:
            raise _does_not_grow(where)
        start = start if messages.turns else where
        messages, acts = so_far, [*acts, act]
    yield _record(messages, acts, start, {})


def _turns_so_far(where: str, row: Row) -> tuple[Messages, Any]:
    key, act = first_filled(TURN_KEYS, row), first_filled(ACT_KEYS, row)
    if key is None:
        raise _no_turns(where, row)
    messages = split_messages(_list_in(row, key, where, "with the turns so far"), where)
    if not messages.turns:
        raise _does_not_grow(where)
    messages.turns = [checked_text(turn, f"turn {number}", where) for number, turn in enumerate(messages.turns, 1)]
    return messages, row[act] if act else None


def _does_not_grow(where: str) -> UserError:
    return UserError(
        f"{where}: does not continue the dialogue of the previous row; the data has one act per row, so row k of a dialogue "
        "must hold its first k turns; for whole dialogues give a list with one act per turn"
    )


def _versions(value: Any, num_turns: int, where: str) -> list[list[str]] | None:
    if is_null(value):
        return None
    if not isinstance(value, list) or len(value) != num_turns:
        found = f"{len(value)} items" if isinstance(value, list) else kind(value)
        raise UserError(
            f"{where}: 'references' holds {found}, wanted one list of strings for each of {num_turns} turns"
        )
    return [_texts(item, f"'references' of turn {number}", where) for number, item in enumerate(value, 1)]


def _texts(value: Any, what: str, where: str) -> list[str]:
    """A string or a list of strings as a list; empty for null."""
    if is_null(value):
        return []
    return [checked_text(text, what, where) for text in (value if isinstance(value, list) else [value])]


def _list_in(row: Row, key: str, where: str, wanted: str) -> list[Any]:
    value = row[key]
    if not isinstance(value, list):
        raise UserError(f"{where}: '{key}' holds {kind(value)}, wanted a list {wanted}")
    return value


def _others(row: Row, used: set[str | None]) -> Row:
    return {key: value for key, value in row.items() if key not in used}


def _no_turns(where: str, row: Row) -> UserError:
    known = (*TURN_KEYS, *PROMPT_KEYS)
    expected = ", ".join(f"'{key}'" for key in known)
    hint = next((hint for key in row if (hint := nearest(str(key).lower(), known))), "")
    found = ", ".join(f"'{key!s:.40}'" for key in list(row)[:20]) or "nothing"
    return UserError(
        f"{where}: no turns; wanted a list of turns under one of {expected}, or one utterance per row with a dialogue id "
        f"('dialog_id'); found {found}{hint}"
    )
