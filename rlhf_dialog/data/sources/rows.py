"""Rows of any table or JSON file -> dialogues. `LAYOUTS` is the table of what is read; the first row decides."""

import itertools
import json
import reprlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from rlhf_dialog.data.row_counts import BadRow, LeftOut, RowCounts, is_empty, is_null
from rlhf_dialog.data.sources.messages import (
    ASSISTANT_ROLES,
    USER_ROLES,
    Messages,
    is_learned,
    items_in,
    read_role,
    said_by_turns,
    split_messages,
    split_pairs,
    unused_keys,
    uses_tools,
    without_nulls,
)
from rlhf_dialog.data.sources.record import (
    NAMES,
    RECIPES,
    SIDES,
    DialogueRecord,
    act_number,
    checked_text,
    find,
    first_filled,
    kind,
    read_flag,
    show_columns,
)
from rlhf_dialog.errors import UserError, nearest

Row = dict[str, Any]
Rows = Iterable[tuple[str, Row]]  # the place of the row, for messages, and the row
Group = Sequence[tuple[str, Row]]  # the rows of one record


class Cells(Row):
    """A row of cells that are text, and may hold a list as text."""


CAMREST = "dial"
TOOLS = "tools"  # what the assistant may call
REJECTED = {"deleted": True, "review_result": False}  # of a message that people have taken out
LABELS = ("kto_tag", "label")  # false: the reply of the row is disliked
OTHER_KINDS = ("images", "videos", "audios")  # lists of what no text can stand for
# of cells: a list, if in brackets
LIST_KEYS = (*NAMES["messages"], *NAMES["act"], "prompt", "reference", "references", "history")
# of what may be messages, also as JSON
SAID_KEYS = {*LIST_KEYS, *SIDES}.union(*(NAMES[kind] for kind in ("prompt", "reference", "history")))


def as_items(value: Any) -> list[Any]:
    """The items of a list, or of an object of equally long lists, which Arrow makes of a list of objects; none of others."""
    columns = [*value.values()] if isinstance(value, dict) else []
    if columns and all(isinstance(cells, list) and len(cells) == len(columns[0]) for cells in columns):
        return [dict(zip(value, cells, strict=True)) for cells in zip(*columns, strict=True)]
    return value if isinstance(value, list) else []


class Layout(NamedTuple):
    """How a kind of data is read: the first row that `fits` decides; `gather` puts the rows of one record together."""

    fits: Callable[[Row], Any]
    read: Callable[[Group, RowCounts], DialogueRecord]
    unit: str = "rows"  # what one record is called in messages
    gather: Callable[[Rows], Iterable[Group]] = zip  # each row alone


class Records:
    """The dialogues of rows, which are made when they are asked for; `rows` gives the rows from a key on.

    `with_calls`: dialogues in which tools are called are read, and lists of tools; else they are left out. Of trees all rows
    stay in memory. Raises UserError when rows cannot be read.
    """

    def __init__(self, rows: Callable[[int], Iterable[tuple[int, str, Row]]], where: str, with_calls: bool = False):
        self.rows, self.where, self.with_calls = rows, where, with_calls
        _, place, first = next(iter(rows(0)))
        layout = next((one for one in LAYOUTS if one.fits(_with_lists(first))), None)
        if layout is None:
            raise _no_turns(place, first)
        self.layout = layout
        is_tree = layout.gather is _gather_trees
        self.paths = list(_gather_trees((place, _with_lists(row)) for _, place, row in rows(0))) if is_tree else None

    def groups(self, start: int = 0) -> Iterator[tuple[int, Group]]:
        """The rows of each record, with the key of the first of them, from the record with the key `start` on."""
        if self.paths is not None:
            yield from ((number, self.paths[number]) for number in range(start, len(self.paths)))
            return
        keys: deque[int] = deque()

        def placed() -> Rows:
            for key, place, row in self.rows(start):
                keys.append(key)
                yield place, _with_lists(row)

        for group in self.layout.gather(placed()):
            yield keys[0], group
            for _ in group:
                keys.popleft()

    def read(self, quiet: bool = False) -> Iterator[tuple[int, DialogueRecord]]:
        """All records in order, with their keys; at the end, what was left out or not read is logged, unless `quiet`."""
        counts, num_open = RowCounts(self.where, self.layout.unit), 0
        for key, record in counts.read(self.groups(), lambda keyed: (keyed[0], self._make(keyed[1], counts))):
            num_open += record.is_prompt and not record.references and "unanswered" not in record.meta
            yield key, record
        if not quiet:
            counts.log(num_open)

    def at(self, key: int) -> DialogueRecord:
        """The record with this key."""
        _, group = next(self.groups(key))
        return self._make(group, RowCounts(self.where))

    def _make(self, group: Group, counts: RowCounts) -> DialogueRecord:
        place, row = group[-1]
        if filled := next((key for key in OTHER_KINDS if isinstance(row.get(key), list) and row[key]), None):
            raise LeftOut(place, filled)
        if any(is_rejected(one) for _, one in group):
            raise LeftOut(place, "'deleted: true' or 'review_result: false' in them or above them")
        record = self.layout.read(group, counts)
        roles = record.roles or []
        # a tool answers the assistant, not the user
        answers_user = any(b == "tool" and a in (None, *USER_ROLES) for a, b in itertools.pairwise([None, *roles]))
        if (record.has_calls and not self.with_calls) or answers_user:
            raise LeftOut(group[0][0], "tool messages")
        if record.tools and not self.with_calls:
            record.tools, record.meta[TOOLS] = [], row[TOOLS]
        used = (*NAMES["dialog_id"], "system" if record.system else None, liked_in(row)[0], "unanswered")
        counts.kept.add(record.meta, used)
        return record


def _with_lists(row: Row) -> Row:
    """The row with lists of turns for objects of lists."""
    return row | {key: as_items(row[key]) for key in NAMES["messages"] if isinstance(row.get(key), dict)}


# -- one row, one dialogue


def _read_dialogue(group: Group, counts: RowCounts) -> DialogueRecord:
    ((where, row),) = group
    key, act = find(row, "messages"), find(row, "act")
    if key is None:
        raise _no_turns(where, row)
    items = [*split_pairs(_list_in(row, key, where, "with one item per turn"))]
    context, used = context_in(row, where, with_history=False)
    if act is None or is_null(row[act]):
        acts = said_by_turns(items, NAMES["act"])
    else:
        acts = _list_in(row, act, where, "with one act per turn")
    meta = _others(row, {key, act, "references", *used}, counts, items, (*NAMES["act"], "references"))
    messages = context.then(split_messages(items, where))
    record = _record(messages, acts, where, meta)
    if liked_in(row)[1] is False:
        record.learned = [*(record.learned or [True] * len(record.turns))[:-1], False]
    versions = row.get("references")
    if is_null(versions):
        versions = said_by_turns(items, ("references",))
    record.references = _versions(versions, len(record.turns), where)
    return record


def _read_camrest(group: Group, counts: RowCounts) -> DialogueRecord:
    """A dialogue of CamRest676, which the user begins and the system ends.

    `meta` has `goal` (`text`, `constraints`, `requests`) and `dialogue_acts`: for each turn its acts as text, such as
    `inform(food=thai) request(phone)`, empty where none is annotated. Raises UserError for a row without these parts.
    """
    ((where, row),) = group
    try:
        pairs = [(pair["usr"], pair["sys"]) for pair in row[CAMREST]]
        turns = [text for user, system in pairs for text in (user["transcript"], system["sent"])]
        acts = [_acts_as_text(side["dialog_act"]) for pair in pairs for side in pair]
        goal = {"text": row["goal"]["text"], "constraints": row["goal"]["info"], "requests": row["goal"]["reqt"]}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"is not a dialogue of CamRest676: {type(error).__name__}: {error}"
        raise UserError(f"{where}: {what}; wanted '{CAMREST}' with `usr` and `sys` in each item, and 'goal'") from None
    counts.unread.add(row, (CAMREST, "goal", *NAMES["dialog_id"]))
    return _record(Messages(turns), None, where, {"goal": goal, "dialogue_acts": acts})


def _acts_as_text(annotated: dict[str, list[list[str]]]) -> str:
    words = []
    for intent, pairs in annotated.items():
        for slot, value in pairs:  # "?" is the value of a slot that is requested
            words.append(f"{intent}({slot})" if value == "?" else f"{intent}({slot}={str(value).lower()})")
    return " ".join(words)


# -- one row, one prompt


def _read_prompt(group: Group, counts: RowCounts) -> DialogueRecord:
    """One prompt, with or without references and an act of the reply."""
    ((where, row),) = group
    reply, act = find(row, "reference"), find(row, "act")
    messages, used, items = prompt_messages(row, where, find(row, "prompt") or "prompt")
    if not items:
        raise BadRow(f"{where}: the prompt is null or has no turns; fill it in, or remove the row")
    meta = _others(row, {act, reply, "references", *used}, counts, items)
    record = _record(messages, None, where, meta)
    record.is_prompt, record.learned = True, []
    if act is not None and not is_null(row[act]):
        record.acts = [act_number(row[act], f"'{act}'", where)]
    replies = [text for name in (reply, "references") if name for text in _replies(row.get(name), name, where)]
    record.references = [replies] if replies else None
    if replies and not (is_learned(row[reply] if reply else None) and liked_in(row)[1] is not False):
        record.learned, record.references, record.acts, record.meta["unanswered"] = [False], None, None, True
    return record


def prompt_messages(row: Row, where: str, key: str) -> tuple[Messages, set[str], list[Any]]:
    """The messages before a reply (system, history, and the prompt under `key`), the columns that they are in, and the items of
    the prompt."""
    value, used = prompt_in(row, key)
    context, more = context_in(row, where)
    items = [] if is_null(value) else items_in(value, key, where, "a string or a list of turns")
    prompt = split_messages(items, where)
    if any(context.roles):
        prompt.roles = [role or "user" for role in prompt.roles]
    return context.then(prompt), used | more, items


def prompt_in(row: Row, key: str, named: str | None = None) -> tuple[Any, set[str]]:
    """The prompt in the column `key`, and the columns that it is in: behind a blank line it has the text in the column `named`,
    or as an `instruction` that of its `input`."""
    prompt = row.get(key)
    used = named or (find(row, "input") if key == "instruction" else None)
    more = (row.get(used) or "") if used else None
    if not (used and isinstance(prompt, str) and isinstance(more, str)):
        return prompt, {key}
    return f"{prompt.strip()}\n\n{more.strip()}".strip(), {key, used}


def context_in(row: Row, where: str, with_history: bool = True) -> tuple[Messages, set[str]]:
    """The system message and the history that a row has in columns of their own, and these columns."""
    tools = parse_tools(row.get(TOOLS))
    messages = Messages(tools=tools or [])
    used = {key for key in (*NAMES["system"], *NAMES["history"], TOOLS) if key not in row or is_empty(row[key])}
    used |= set() if tools is None else {TOOLS}
    for key in NAMES["system"]:
        texts: list[Any] = row[key] if isinstance(row.get(key), list) else [row.get(key)]
        if not messages.system and texts and all(isinstance(text, str) for text in texts):
            messages.system = [(0, checked_text(text, f"'{key}'", where)) for text in texts if text.strip()]
            used.add(key)
    for key in NAMES["history"][: 2 * with_history]:
        history = [*split_pairs(row[key])] if isinstance(row.get(key), list) else []
        is_text = key == "history" and all(isinstance(one, str) for one in history)
        if history and not messages.turns and (is_text or all(isinstance(one, dict) for one in history)):
            messages, used = messages.then(split_messages(history, where)), used | {key}
    return messages, used


def is_rejected(row: Row) -> bool:
    """Whether people have taken a message out (OASST)."""
    return any(read_flag(row[key]) is flag for key, flag in REJECTED.items() if key in row)


def liked_in(row: Row) -> tuple[str | None, bool | None]:
    """The column that says whether the reply of a row is liked (KTO), if there is one, and what it says.

    `label` is one beside `completion`, and as true or false beside messages of which the last is the assistant's.
    """
    key = next((key for key in LABELS if key in row and read_flag(row[key]) is not None), None)
    if key is None:
        return None, None
    turns = row.get(find(row, "messages") or "")
    ends = isinstance(turns, list) and read_role((turns or [None])[-1]) in ASSISTANT_ROLES
    is_rating = key == LABELS[0] or "completion" in row or (ends and isinstance(row.get("label"), bool))
    return (key, read_flag(row[key])) if is_rating else (None, None)


def parse_tools(value: Any) -> list[Any] | None:
    """The list of a column `tools`, which may be JSON; None for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    tools = [value] if isinstance(value, dict) else value
    is_list = isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)
    return [without_nulls(tool) for tool in tools] if is_list else None


def _replies(value: Any, key: str, where: str) -> list[str]:
    """The replies in a column: a string, a list of strings, or one message."""
    items = [value] if isinstance(value, dict) else value
    if isinstance(items, list) and any(isinstance(item, dict) for item in items):
        items = split_messages(items, where).turns
        if len(items) != 1:
            raise UserError(f"{where}: '{key}' holds {len(items)} messages, wanted one, which is the reply")
    return _texts(items, f"'{key}'", where)


# -- one row, one utterance


def _gather_utterances(rows: Rows) -> Iterator[Group]:
    """Consecutive rows with the same id. Raises UserError for an id that comes back later."""
    seen: set[Any] = set()
    for ident, group in itertools.groupby(rows, key=lambda placed: _ident(placed[0], placed[1], "dialog_id")):
        members = list(group)
        if ident in seen:
            raise UserError(
                f"{members[0][0]}: dialogue {reprlib.repr(ident)} continues after rows of another dialogue; sort the rows, or "
                "give every dialogue its own id"
            )
        seen.add(ident)
        yield members


def _ident(where: str, row: Row, what: str) -> Any:
    key = find(row, what)
    ident = row[key] if key else None
    if is_null(ident) or not isinstance(ident, str | int | float):
        raise UserError(f"{where}: '{key or what}' holds {kind(ident)}, wanted a number or a string in every row")
    return ident


def _read_utterances(group: Group, counts: RowCounts) -> DialogueRecord:
    """A dialogue of which each row is a turn."""
    turns = []
    for where, row in group:
        key = find(row, "messages", "utterance")
        if key is None:
            raise _no_turns(where, row)
        if not isinstance(row[key], list) and not uses_tools(row):
            checked_text(row[key], f"'{key}'", where)
        counts.unread.add(unused_keys([row], (key, "references", *NAMES["act"], *NAMES["dialog_id"])))
        turns.append(row | {"utterance": row[key]})
    where = f"{group[0][0]} (dialogue {reprlib.repr(_ident(*group[0], 'dialog_id'))})"
    return _read_dialogue([(where, {"messages": turns})], RowCounts(where))


# -- one row, one message of a tree: each reply once, behind its ancestors


def _gather_trees(rows: Rows) -> Iterator[Group]:
    """For each reply, and for each message of the user that has none, its row behind those of its ancestors.

    A path whose beginning is not in the data begins with a row that has a parent. Raises UserError for an id that is there twice.
    """
    by_id: dict[Any, tuple[str, Row]] = {}
    for where, row in rows:
        if (ident := _ident(where, row, "message_id")) in by_id:
            raise UserError(
                f"{where}: '{find(row, 'message_id')}' holds {reprlib.repr(ident)}, wanted an id that no other row has"
            )
        by_id[ident] = (where, row)
    answered = {_parent(row) for _, row in by_id.values() if not is_rejected(row)}
    for ident, (where, row) in by_id.items():
        if ident in answered and (is_empty(_parent(row)) or read_role(row) in USER_ROLES):
            continue  # it stands before others, and is no reply
        path = [(where, row)]
        while (above := by_id.get(_parent(path[-1][1]))) and len(path) <= len(by_id):
            path.append(above)
        yield path[::-1]


def _read_path(group: Group, counts: RowCounts) -> DialogueRecord:
    """A prompt: the last message is its reply, or the user's, which nobody has answered."""
    where, row = group[-1]
    if not is_empty(_parent(group[0][1])):
        raise LeftOut(where, f"a '{find(row, 'parent')}' that is not in the data above them")
    unanswered = read_role(row) in USER_ROLES
    if len(group) == 1 and not unanswered:
        raise LeftOut(where, "no message before them")
    above = [one for _, one in group[:-1]]
    prompt = {"prompt": [*above, row]} if unanswered else {"prompt": above, "reference": row}
    record = _read_prompt([(where, prompt)], RowCounts(where))
    used = {find(row, "utterance"), *NAMES["message_id"], *NAMES["parent"], *NAMES["role"]}
    meta = {"dialog_id": _ident(*group[0], "message_id")} | _others(row, used, counts) | record.meta
    record.meta = meta | ({"unanswered": True} if unanswered else {})
    return record


def _parent(row: Row) -> Any:
    parent = row.get(find(row, "parent") or "")
    return reprlib.repr(parent) if isinstance(parent, list | dict) else parent  # the id of no row


OF_UTTERANCES = ("dialogues", _gather_utterances)
LAYOUTS = (  # docs/DATA.md shows them to users
    Layout(lambda row: isinstance(row.get(CAMREST), list), _read_camrest),
    Layout(lambda row: isinstance(row.get(find(row, "messages") or ""), list), _read_dialogue),
    Layout(
        lambda row: "utterance" in row and first_filled(NAMES["dialog_id"][:-1], row), _read_utterances, *OF_UTTERANCES
    ),
    Layout(lambda row: "prompt" in row, _read_prompt),
    Layout(
        lambda row: find(row, "parent") and find(row, "utterance") and find(row, "message_id"),
        _read_path,
        "replies",
        _gather_trees,
    ),
    Layout(lambda row: find(row, "messages", "utterance") and find(row, "dialog_id"), _read_utterances, *OF_UTTERANCES),
    Layout(lambda row: find(row, "prompt"), _read_prompt),
    Layout(lambda row: find(row, "messages"), _read_dialogue),
)


# -- what the layouts share


def _record(messages: Messages, acts: list[Any] | None, where: str, meta: Row) -> DialogueRecord:
    """The record of these messages, with checked turns and acts. Raises UserError that names `where` and what is wrong there."""
    count = len(messages.turns)
    texts = [checked_text(turn, f"turn {number} of {count}", where) for number, turn in enumerate(messages.turns, 1)]
    if not texts:
        raise BadRow(f"{where}: the dialogue has no turns; remove it")
    acts = None if acts is None or all(map(is_null, acts)) else acts
    if acts is not None:
        acts = [act_number(act, f"act {number}", where) for number, act in enumerate(acts, 1)]
        if len(acts) != count:
            what = "every turn needs one act: fix the line, or leave the acts out of the whole data set"
            raise UserError(f"{where}: {count} turns but {len(acts)} acts; {what}")
    if messages.system:
        meta["system"] = "\n".join(text for _, text in messages.system)
    roles = messages.roles if any(messages.roles) else None
    learned = [] if all(messages.learned) else messages.learned
    return DialogueRecord(
        texts, acts, meta=meta, roles=roles, system=messages.system, learned=learned, tools=messages.tools
    )


def _others(
    row: Row, used: set[str | None], counts: RowCounts, items: Iterable[Any] = (), read: Iterable[str] = ()
) -> Row:
    """The columns that become `meta`; the keys of the turns that are not `read` are counted."""
    counts.unread.add({f"{key} of a turn": value for key, value in unused_keys(items, read).items()})
    return {key: value for key, value in row.items() if key not in used}


def _versions(value: Any, num_turns: int, where: str) -> list[list[str]] | None:
    if is_null(value):
        return None
    if not isinstance(value, list) or len(value) != num_turns:
        wanted = f"wanted one list of strings for each of {num_turns} turns"
        raise UserError(f"{where}: 'references' holds {reprlib.repr(value)}, {wanted}")
    return [_texts(item, f"'references' of turn {number}", where) for number, item in enumerate(value, 1)]


def _texts(value: Any, what: str, where: str) -> list[str]:
    """A string or a list of strings as a list; empty for null."""
    if is_null(value):
        return []
    return [checked_text(text, what, where) for text in (value if isinstance(value, list) else [value])]


def _list_in(row: Row, key: str, where: str, wanted: str) -> list[Any]:
    value = row[key]
    if not isinstance(value, list):
        error = BadRow if is_null(value) else UserError
        raise error(f"{where}: '{key}' holds {kind(value)}, wanted a list {wanted}")
    return value


def _no_turns(where: str, row: Row) -> UserError:
    known = (*NAMES["messages"], *NAMES["prompt"])
    hints = [
        f"; if '{key}' holds the turns, set columns: {{messages: {key}}}"
        for key, cell in row.items()
        if any(isinstance(item, dict) and find(item, "utterance") for item in as_items(cell))
    ]
    hints += [hint for key in row if (hint := nearest(str(key).lower(), known))]
    hint = [*hints, "; set `columns` to read other names"][0]
    return UserError(
        f"{where}: no turns; wanted a list of turns under one of {', '.join(known)}, or one utterance per row with a dialogue id "
        f"('dialog_id'); found {show_columns(row)}{hint}; {RECIPES}"
    )
