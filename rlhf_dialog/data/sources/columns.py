"""The `columns` of a configuration: which column of the data holds what."""

import ast
import io
import itertools
import logging
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from rlhf_dialog.data.row_counts import Unused
from rlhf_dialog.data.sources.messages import ASSISTANT_ROLES, USER_ROLES, are_messages, uses_tools
from rlhf_dialog.data.sources.record import NAMES, SIDES, find, show_columns
from rlhf_dialog.data.sources.rows import LIST_KEYS, SAID_KEYS, Cells, Row, Rows, as_items, prompt_in
from rlhf_dialog.data.written_texts import read_transcript
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.json_files import parse_json

logger = logging.getLogger(__name__)
Columns = Mapping[Any, str]  # such as {"prompt": "question"}: the kind of a column, and its name in the data
OF_TURNS = {  # the keys of turns that are objects, in the same way; `user` and `assistant` are two turns of one object
    **{"turn.user": USER_ROLES, "turn.assistant": ASSISTANT_ROLES, "turn.utterance": NAMES["utterance"]},
    **{"turn.role": NAMES["role"], "turn.speaker": NAMES["role"], "turn.act": NAMES["act"]},
}
KINDS = (*NAMES, *OF_TURNS)
MESSAGE = re.compile(r"""\[?\s*\{.*?["'](?:role|from|speaker)["']\s*:""", re.DOTALL)
BETWEEN = re.compile(r"\}\s+\{")  # of two messages, as numpy writes them
TRANSCRIPTS = 0.9  # of the texts in a column, so that these are read as turns
Keys = tuple[str, ...]
SAID_TOGETHER: tuple[Keys, ...] = (SIDES, *((key,) for key in (*NAMES["prompt"], *NAMES["messages"])))
TEXT_KEYS = {*SIDES}.union(*SAID_TOGETHER)
# the kinds that decide the layout, and the names that would decide it otherwise
FORMS = {kind: NAMES[kind] for kind in ("messages", "prompt", "parent")} | {"utterance": ("utterance",)}
CANDIDATES = re.compile("candidate|distractor|option|choice", re.IGNORECASE)  # texts of which one alone may be right


def find_transcripts(rows: Rows, where: str, quiet: bool = False) -> list[Keys]:
    """The columns in which most texts are transcripts.

    A warning counts other transcripts, unless `quiet`. Raises UserError for what is written like a list but cannot be read, and
    where there are no rows.
    """
    num_rows, num_filled, counts = 0, Counter[Keys](), Counter[Keys]()
    for place, row in rows:
        num_rows += 1
        texts = {key for key in TEXT_KEYS if isinstance(row.get(key), str)}
        for keys in SAID_TOGETHER if texts else ():
            if texts.issuperset(keys):
                values = [_parse(row[key], key, place, isinstance(row, Cells)) for key in keys]
                if all(isinstance(value, str) and value.strip() for value in values):
                    num_filled[keys] += 1
                    counts[keys] += all(
                        {"user", "assistant"} <= {x["role"] for x in read_transcript(y)} for y in values
                    )
    if not num_rows:
        raise UserError(f"{where}: there are no rows; give at least one")
    found = []
    for keys in SAID_TOGETHER:
        if counts[keys] and counts[keys] >= TRANSCRIPTS * num_filled[keys]:
            found.append(keys)
        elif counts[keys] and not quiet:
            text = "%s: %d of %d texts in '%s' look like transcripts, and are read as text, because these are fewer than %.0f %%"
            logger.warning(text, where, counts[keys], num_filled[keys], "' and '".join(keys), 100 * TRANSCRIPTS)
    return found


def read_texts(row: Row, place: str, transcripts: Iterable[Keys]) -> Row:
    """The row with what stands in its texts: lists in `Cells`, messages as JSON, and those of columns of `transcripts`."""
    row = row | {key: _parse(row[key], key, place, isinstance(row, Cells)) for key in SAID_KEYS & row.keys()}
    for keys in transcripts:
        if all(isinstance(row.get(key), str) and row[key].strip() for key in keys):
            sides = [read_transcript(row[key]) for key in keys]
            if keys != SIDES and sides[0] and not sides[0][-1]["content"].strip():
                del sides[0][-1]  # the reply that is to come
            row.update((key, said) for key, said in zip(keys, sides, strict=True) if said)
    return row


def _parse(value: Any, key: str, where: str, is_cell: bool = False) -> Any:
    if isinstance(value, list):
        return [one for item in value for one in _unpack(item, key, where)]
    text = value.strip() if isinstance(value, str) else ""
    is_list = is_cell and key in LIST_KEYS and text.startswith("[") and text.endswith("]")
    if not is_list and not (MESSAGE.match(text) and text.endswith(("]", "}"))):
        return value
    parsed = None
    with suppress(ValueError):
        parsed = parse_json(text)
    if parsed is None:
        with suppress(ValueError, TypeError, SyntaxError, tokenize.TokenError, MemoryError, RecursionError):
            parsed = None if _has_adjacent_strings(text) else ast.literal_eval(text)
    if parsed is not None:
        return parsed if is_list or are_messages(parsed) else value
    if not (is_list or BETWEEN.search(text)):
        return value
    raise UserError(
        f"{where}: '{key}' holds {text:.60}, which is neither a JSON nor a Python list (numpy writes lists without commas, "
        "which cannot be read back); save the lists with json.dumps, or save the data as JSONL or parquet"
    )


def _unpack(item: Any, key: str, where: str) -> list[Any]:
    """An item of a list, or the messages that are its text."""
    text = item.get(find(item, "utterance") or "") if isinstance(item, dict) else item
    parsed = _parse(text, key, where) if isinstance(text, str) and not uses_tools(item) else text
    if parsed is text:
        return [item]
    return parsed if isinstance(parsed, list) else [parsed]


def _has_adjacent_strings(text: str) -> bool:
    """Whether two strings follow each other without a comma: numpy's ['a' 'b'], which Python reads as ['ab']."""
    skipped = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT)
    kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in skipped]
    return any(a == b == tokenize.STRING for a, b in itertools.pairwise(kinds))


def check_columns(columns: Any) -> None:
    """Raises UserError for `columns` that are no names of columns by their KINDS."""
    named = columns if isinstance(columns, Mapping) else {}
    wrong = [kind for kind, name in named.items() if kind not in KINDS or not isinstance(name, str)]
    if wrong or not isinstance(columns, Mapping):
        hint = nearest(str(wrong[0]), KINDS) if wrong else ""
        raise UserError(
            f"columns: found {columns!r:.80}, wanted {{kind: column}}, of the kinds {', '.join(KINDS)}; docs/DATA.md shows "
            f"them{hint}"
        )


def find_hidden(rows: Rows, where: str, columns: Columns, quiet: bool = False) -> set[str]:
    """The names that are not to be read: those that could be taken for the columns that `columns` names.

    A warning names those that the data has, unless `quiet`. Raises UserError for a column that no row has.
    """
    if not columns:
        return set()
    of_rows = [kind for kind in columns if kind in NAMES]
    hidden = {name for kind in of_rows for name in NAMES[kind]}
    hidden -= {*NAMES["message_id"]} if "parent" in columns and "message_id" not in columns else set()
    hidden |= {columns[kind] for kind in of_rows}
    if not FORMS.keys().isdisjoint(columns):
        hidden.update(*(names for kind, names in FORMS.items() if kind not in columns))
    unread, others = Unused(), hidden - {*columns.values()}
    names, keys = dict[str, None](), dict[str, None]()
    for _, row in rows:
        names.update(dict.fromkeys(map(str, row)))
        turns = (item for cell in row.values() for item in as_items(cell) if isinstance(item, dict))
        keys.update((str(key), None) for turn in turns for key in turn)
        unread.add({name: value for name, value in row.items() if name in others})
    for kind, column in columns.items():
        known, what = (keys, "turn with") if kind in OF_TURNS else (names, "column")
        if unread.num_rows and column not in known:
            there, hint = show_columns(known), nearest(column, list(known))
            raise UserError(f"columns.{kind}: {where} has no {what} '{column}', it has {there}; name one of them{hint}")
        if kind in ("reference", "references") and CANDIDATES.search(column) and not quiet:
            logger.warning("%s: each text of '%s' is taken for an acceptable reply; are all of them?", where, column)
    if (listed := unread.listed()) and not quiet:
        logger.warning("%s: not read, because `columns` names others: %s", where, listed)
    return hidden


def rename_columns(row: Row, columns: Columns, hidden: set[str]) -> Row:
    """The row with the columns that `columns` names under their kinds, without the `hidden` ones."""
    renamed = {kind: row[column] for kind, column in columns.items() if kind in NAMES and column in row}
    prompt = columns.get("prompt") or find(row, "prompt")
    if prompt in row and ("prompt" in columns or "input" in columns):
        renamed["prompt"], used = prompt_in(row, prompt, columns.get("input"))
        hidden = hidden | used
        renamed.pop("input", None)
    if isinstance(renamed.get("history"), str):
        renamed["history"] = [renamed["history"]]
    of_turns = {kind.partition(".")[2]: key for kind, key in columns.items() if kind in OF_TURNS}
    cells = {name: value for name, value in row.items() if name not in hidden} | renamed
    return type(row)({name: _rename_turns(cell, of_turns) for name, cell in cells.items()} if of_turns else cells)


def _rename_turns(cell: Any, keys: dict[str, str]) -> Any:
    """A list of turns with the keys that `columns` names under their kinds; anything else as it is."""
    if not any(isinstance(item, dict) for item in as_items(cell)):
        return cell
    hidden = {*keys.values()}.union(*(OF_TURNS[f"turn.{kind}"] for kind in keys))

    def rename(turn: Row) -> Row:
        others = {key: value for key, value in turn.items() if key not in hidden}
        return {kind: turn[key] for kind, key in keys.items() if key in turn} | others

    return [rename(item) if isinstance(item, dict) else item for item in as_items(cell)]


@contextmanager
def naming_columns(columns: Columns) -> Iterator[None]:
    """Errors name the user's columns in place of their kinds."""
    try:
        yield
    except UserError as error:
        text = re.sub(r"'(\w+)'", lambda quoted: f"'{columns.get(quoted[1], quoted[1])}'", str(error))
        raise error.with_location(text, instead_of=str(error)) from None
