"""Preference pairs: two replies to the same prompt, of which one was preferred. docs/REWARDS.md shows the rows."""

import itertools
import math
import random
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.data.dialogue import AUTO, BLANK_LINE, Dialogue, ToolText
from rlhf_dialog.data.row_counts import BadRow, LeftOut, RowCounts, is_empty, is_null
from rlhf_dialog.data.sources import NO_COLUMNS, Source
from rlhf_dialog.data.sources.columns import Columns, naming_columns
from rlhf_dialog.data.sources.messages import (
    USER_ROLES,
    Messages,
    items_in,
    join_turns,
    read_role,
    read_speakers,
    split_messages,
    unused_keys,
)
from rlhf_dialog.data.sources.record import RECIPES, SIDES, checked_text, find, read_flag, show_columns
from rlhf_dialog.data.sources.rows import Row, Rows, prompt_messages
from rlhf_dialog.data.sources.splits import NO_NAMES, SplitNames
from rlhf_dialog.errors import UserError, nearest

Array = NDArray[Any]
# names of columns that say which side is better
SAYS_WHICH = re.compile(r"better|safer|winner|prefer|^labels?$", re.IGNORECASE)
SCORE = re.compile(r"score|rating|reward", re.IGNORECASE)
TIE = re.compile(r"\b(tie|tied|both|same|equal|draw|neither|none)\b", re.IGNORECASE)
LONG_ENOUGH = 20  # characters that two texts without a prompt share, so that they count as its text


@dataclass(frozen=True)
class Preference:
    """The column that says which side of a row is the better one: the chosen one where it `chosen_is`, or where it is `above`."""

    column: str
    chosen_is: Any = None
    above: float | None = None

    def check(self, rows: Rows) -> None:
        """Raises UserError where the column is missing, lacks the value, or has several others."""
        values = {self._value(row, where) for where, row in rows} - {None}
        others = values - {_comparable(self.chosen_is)}
        if self.above is None and (others == values or len(others) > 1):
            shown = _show(values) or "nothing"
            raise UserError(
                f"preference.chosen_is: found {self.chosen_is!r:.60}, but '{self.column}' holds {shown}; give the value where "
                "the chosen side is the better one, if there is one other value, or `above: NUMBER` for a column of numbers"
            )

    def order(self, row: Row, where: str) -> Row:
        """The row with its better side under 'chosen'. Raises LeftOut for a tie."""
        value = self._value(row, where)
        if value is None:
            raise LeftOut(where, f"a tie in '{self.column}'")
        is_chosen = value == _comparable(self.chosen_is) if self.above is None else value > self.above
        return row if is_chosen else row | {"chosen": row.get("rejected"), "rejected": row.get("chosen")}

    def _value(self, row: Row, where: str) -> Any:
        """What a row holds, to be compared; None for a tie."""
        if self.column not in row:
            hint = nearest(self.column, [*map(str, row)])
            raise UserError(
                f"preference.column: {where} has no column '{self.column}', it has {show_columns(row)}{hint}"
            )
        value = _comparable(row[self.column])
        if value is None or value == self.above or (isinstance(value, str) and TIE.search(value)):
            return None
        if self.above is not None and isinstance(value, str):
            raise UserError(f"{where}: '{self.column}' holds '{value:.60}', but preference.above needs a number")
        return value


def _comparable(value: Any) -> float | str | None:
    """A cell to be compared: flags and numbers (also as text) as numbers, other texts in lower case; None for an empty one."""
    if is_empty(value):
        return None
    if (flag := read_flag(value)) is not None:
        return float(flag)
    return number if (number := _number(value)) is not None else str(value).strip().lower()


def _show(values: Iterable[float | str | None]) -> str:
    return ", ".join(sorted(f"{x:g}" if isinstance(x, float) else f"{x:.40}" for x in values if x is not None)[:9])


def _number(value: Any) -> float | None:
    """A finite number, also one that is written as text; None for anything else."""
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and math.isfinite(float(value)):
            return float(value)
    return None


@dataclass(frozen=True)
class PreferencePair:
    """Two replies to one prompt, each as the response of a dialogue."""

    chosen: Dialogue
    rejected: Dialogue
    margin: float | None  # by how much the score of the chosen reply should be higher, at least
    where: str  # its place in the data, for messages

    @property
    def prompt(self) -> str:
        """What the pairs of one prompt share: the turns that both sides begin with; white space counts as one space.

        Without a prompt it is the text that both begin with; its last line may belong to the replies, and does not count.
        """
        if turns := _shared_prefix(self.chosen.prompt_turns, self.rejected.prompt_turns):
            return " ".join("\n".join(turns).split())
        shared = "".join(_shared_prefix(self.chosen.response, self.rejected.response))
        lines = " ".join(shared.rpartition("\n")[0].split())
        return next((text for text in (lines, shared) if len(text) >= LONG_ENOUGH), self.where)

    @property
    def last_turn(self) -> str:
        """The turn that both sides answer; empty without a prompt."""
        return "".join(self.chosen.prompt_turns[-1:])


class Pairs(Sequence[PreferencePair]):
    """The pairs of one split, each made from its row when it is drawn; 16 bytes of each are in memory.

    `keys` (N,): those of the rows; `prompts` (N,): a number of each prompt, the same for pairs of one prompt. A pair raises
    UserError when its file has changed.
    """

    def __init__(self, source: Source, preference: Preference | None, keys: Array, prompts: Array):
        self.source, self.preference, self.keys, self.prompts = source, preference, keys, prompts

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, number: int) -> PreferencePair: ...
    @overload
    def __getitem__(self, number: slice) -> "Pairs": ...
    def __getitem__(self, number: int | slice) -> "PreferencePair | Pairs":
        if isinstance(number, slice):
            return self.select(number)
        _, where, row = next(iter(self.source.rows(int(self.keys[number]))))
        return _pair(row, where, RowCounts(where), self.preference)

    def __iter__(self) -> Iterator[PreferencePair]:
        counts, number = RowCounts(self.source.where), 0
        for key, where, row in self.source.rows():
            if number < len(self) and key == self.keys[number]:
                yield _pair(row, where, counts, self.preference)
                number += 1

    def select(self, kept: Any) -> "Pairs":
        """Those of which `kept` (N,) is True, or of a slice; they stay in their order."""
        return Pairs(self.source, self.preference, self.keys[kept], self.prompts[kept])


def load_pairs(
    data_path: str,
    split: str,
    columns: Columns = NO_COLUMNS,
    names: SplitNames = NO_NAMES,
    preference: Preference | str | None = AUTO,
) -> Pairs:
    """The pairs of one split, in the order of the data; `columns` and `names` as for `load_records`.

    `preference` says which side is the better one; None: the chosen one. AUTO is None, but raises UserError where `columns`
    names both sides and a column that nothing reads may say it. Bad rows, such as those with equal sides, are left out up to a
    tenth (`RowCounts`). Raises MissingSplit when there is no such split, UserError that names the row for one that cannot be
    read, and for one that lacks the margin that others have.
    """
    source = Source(data_path, split, columns, names)
    decided = preference if isinstance(preference, Preference) else None
    if decided:
        decided.check((where, row) for _, where, row in source.rows())
    elif preference == AUTO and columns.keys() >= {*SIDES}:
        _check_decided((row for _, _, row in source.rows()), columns, data_path)
    counts, keys, prompts = RowCounts(f"{data_path}, {split}"), array("Q"), array("q")
    num_margins = 0
    without = ""  # the place of the first pair without a margin
    with naming_columns(columns):
        read = counts.read(source.rows(), lambda keyed: (keyed[0], _pair(keyed[2], keyed[1], counts, decided)))
        for key, pair in read:
            keys.append(key)
            prompts.append(hash(pair.prompt))
            num_margins += pair.margin is not None
            if pair.margin is None and not without:
                without = pair.where
    counts.log()
    if 0 < num_margins < len(keys):
        raise UserError(f"{without}: has no 'margin', but other rows have one; give all rows a margin, or none")
    return Pairs(source, decided, np.frombuffer(keys, np.uint64), np.frombuffer(prompts, np.int64))


def split_by_prompt(pairs: Pairs, share: float, seed: int) -> tuple[Pairs, Pairs]:
    """Pairs to learn from, and pairs held out: about a `share` of the prompts, drawn by `seed`. No prompt is in both.

    Raises UserError when there are fewer than two prompts.
    """
    _, first = np.unique(pairs.prompts, return_index=True)
    if len(first) < 2:
        raise UserError(
            f"data_path: the {len(pairs)} pairs have {len(first)} prompt, but some prompts are held out for the report; "
            "give pairs of more prompts"
        )
    count = min(max(1, round(share * len(first))), len(first) - 1)
    chosen = random.Random(seed).sample(range(len(first)), count)  # of the prompts in the order of the data
    held = np.isin(pairs.prompts, pairs.prompts[np.sort(first)[chosen]])
    return pairs.select(~held), pairs.select(held)


def _shared_prefix(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The turns, or characters, that both begin with."""
    return [a for a, _ in itertools.takewhile(lambda both: both[0] == both[1], zip(first, second, strict=False))]


def _check_decided(rows: Iterable[Row], columns: Columns, data_path: str) -> None:
    """Raises UserError where a column that nothing reads may say which of two named sides is better."""
    found: dict[str, set[float | str | None]] = {}
    for row in rows:
        for name in row:
            if SAYS_WHICH.search(str(name)):
                found.setdefault(str(name), set()).add(_comparable(row[name]))
    for name, some in found.items():
        if len(values := some - {None}) > 1:
            raise UserError(
                f"{data_path}: '{name}' holds {_show(values)} and may say which side is better, but nothing reads it; set "
                f"preference: {{column: {name}, chosen_is: VALUE}}, the value where '{columns['chosen']}' is better (or above: "
                "NUMBER), or preference: null if it always is"
            )


def _pair(row: Row, where: str, counts: RowCounts, preference: Preference | None) -> PreferencePair:
    decides = None
    if preference:
        row, decides = preference.order(row, where), preference.column
    chosen, rejected, used = read_sides(row, where)
    counts.unread.add(row | keys_of_turns(row), {*used, decides, "reference", "margin"})
    reference = row.get("reference")
    text = reference.strip() if isinstance(reference, str) else None
    margin = _margin(row.get("margin"), where)
    return PreferencePair(_dialogue(chosen, text), _dialogue(rejected, text), margin, where)


def keys_of_turns(row: Row) -> Row:
    """What a row's messages hold under keys that are not read."""
    items = [item for value in row.values() if isinstance(value, list) for item in value]
    return {f"{key} of a turn": value for key, value in unused_keys(items, ()).items()}


def read_sides(row: Row, where: str) -> tuple[Messages, Messages, set[str]]:
    """The two dialogues of a row, each with its reply as the last turn, and the columns that were read.

    The prompt is a column of its own, or the beginning of both sides; what a side repeats of it is read once. Raises BadRow when
    a text is missing or both are the same, LeftOut for calls of tools, and UserError for what is no pair.
    """
    if missing := [name for name in SIDES if name not in row]:
        hint = next((hint for key in row if (hint := nearest(str(key).lower(), SIDES))), "")
        raise UserError(
            f"{where}: there is no column '{missing[0]}'; a pair needs 'chosen' and 'rejected', and may have 'prompt' and "
            f"'margin'; found {show_columns(row)}{hint or f'; {RECIPES}'}"
        )
    prompt, used = read_prompt(row, where)
    sides = [read_side(row[name], name, where) for name in SIDES]
    if len(prompt.turns) > 1 and _same(prompt.turns[-1]) == _same(sides[0].turns[-1]):  # all of the chosen dialogue
        prompt = Messages(prompt.turns[:-1], prompt.roles[:-1], prompt.system)
    _cut_prompt(prompt, sides)
    chosen, rejected = (put_behind(prompt, side) for side in sides)
    if chosen.turns == rejected.turns:
        raise BadRow(f"{where}: 'chosen' and 'rejected' are the same, so there is nothing to learn; remove the row")
    _check_scores(row, where)
    return chosen, rejected, used | {*SIDES}


def _check_scores(row: Row, where: str) -> None:
    """Raises BadRow where a score of the chosen side is below that of the rejected one."""
    for name in (name for name in map(str, row) if "chosen" in name and SCORE.search(name)):
        other = name.replace("chosen", "rejected")
        chosen, rejected = _number(row[name]), _number(row.get(other))
        if chosen is not None and rejected is not None and chosen < rejected:
            raise BadRow(
                f"{where}: '{name}' {chosen:g} is below '{other}' {rejected:g}; exchange the sides, or remove the row"
            )


def read_prompt(row: Row, where: str) -> tuple[Messages, set[str]]:
    """The messages before the replies, each with a role, and the columns that they are in. Raises as `read_sides` does."""
    what = find(row, "prompt", "messages") or "prompt"
    prompt, used, _ = prompt_messages(row, where, what)
    prompt.turns = [_text(turn, f"turn {i} of '{what}'", where) for i, turn in enumerate(prompt.turns, 1)]
    if not any(prompt.roles):
        roles: list[str | None] = [("user", "assistant")[i % 2] for i in range(len(prompt.turns))]
        prompt.roles = roles[::-1]
    return prompt, used


def _text(turn: Any, what: str, where: str) -> str:
    if isinstance(turn, ToolText):
        raise LeftOut(where, "tool messages")
    return checked_text(turn, what, where)


def _cut_prompt(prompt: Messages, sides: list[Messages]) -> None:
    """Cut a long prompt off two texts that both begin with it."""
    begin = prompt.turns[0] if len(prompt.turns) == 1 else ""
    replies = [side.turns[0] for side in sides if len(side.turns) == 1 and side.turns[0].startswith(begin)]
    cut = [reply.removeprefix(begin).strip() for reply in replies]
    if len(begin) >= LONG_ENOUGH and len(cut) == 2 and all(cut):
        for side, reply in zip(sides, cut, strict=True):
            side.turns = [reply]


def put_behind(prompt: Messages, side: Messages) -> Messages:
    """The side behind the prompt, without the turns of the prompt that it begins with or holds."""
    asked, before = [*map(_same, prompt.turns)], [*map(_same, side.turns[:-1])]
    if any(before[i : i + len(asked)] == asked for i in range(len(before) - len(asked) + 1)):
        return Messages([], [], prompt.system).then(side)
    shared = next(k for k in range(min(len(asked), len(before)), -1, -1) if asked[len(asked) - k :] == before[:k])
    system = [(max(0, place - shared), text) for place, text in side.system]
    return prompt.then(Messages(side.turns[shared:], side.roles[shared:], system))


def _same(text: str) -> str:
    return " ".join(text.split())


def _dialogue(messages: Messages, reference: str | None) -> Dialogue:
    """The prompt and the reply of one side; messages of one role in a row are one turn."""
    turns = messages.turns
    if speakers := read_speakers(messages.roles):
        turns = [turn.text for turn in join_turns(turns, speakers)]
    system = BLANK_LINE.join(text for _, text in messages.system) or None
    return Dialogue(turns[:-1], turns[-1], reference=reference, system=system)


def read_side(value: Any, name: str, where: str) -> Messages:
    """The text of one side, or its messages, of which the last one is the reply."""
    if is_null(value):
        raise BadRow(f"{where}: '{name}' holds null, wanted the reply as a string, or messages")
    items = items_in(value, name, where, "the reply as a string, or messages")
    if items and read_role(items[-1]) in USER_ROLES:
        raise UserError(
            f"{where}: '{name}' ends with a message of the {read_role(items[-1])}, wanted a text or messages that end with one "
            "of the assistant"
        )
    messages = split_messages(items, where)
    if not messages.turns:
        raise BadRow(f"{where}: '{name}' holds no message; its last one must be the reply")
    messages.turns = [_text(turn, f"'{name}'", where) for turn in messages.turns]
    messages.roles = [role or "assistant" for role in messages.roles]
    return messages


def _margin(value: Any, where: str) -> float | None:
    if is_null(value):
        return None
    if (number := _number(value)) is None:
        raise UserError(f"{where}: 'margin' holds {value!r:.60}, wanted a finite number")
    return number
