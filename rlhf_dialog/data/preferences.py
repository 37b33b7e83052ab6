"""Preference pairs: two replies to the same prompt, of which one was preferred. docs/REWARDS.md shows the rows."""

import itertools
import math
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlhf_dialog.data.dialogue import Dialogue, ToolText
from rlhf_dialog.data.sources import NO_COLUMNS, load_rows
from rlhf_dialog.data.sources.columns import Columns, naming_columns
from rlhf_dialog.data.sources.messages import (
    USER_ROLES,
    Messages,
    first_filled,
    items_in,
    read_role,
    split_messages,
    unused_keys,
)
from rlhf_dialog.data.sources.record import RECIPES, BadRow, LeftOut, RowCounts, checked_text, is_null, show_columns
from rlhf_dialog.data.sources.rows import PROMPT_KEYS, SIDES, TURN_KEYS, Row, prompt_messages
from rlhf_dialog.data.sources.splits import NO_NAMES, SplitNames
from rlhf_dialog.data.speakers import BLANK_LINE, join_turns, read_speakers
from rlhf_dialog.errors import UserError, nearest

LONG_ENOUGH = 20  # characters that two texts without a prompt share, so that they count as its text


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


def load_pairs(
    data_path: str, split: str, columns: Columns = NO_COLUMNS, names: SplitNames = NO_NAMES
) -> list[PreferencePair]:
    """The pairs of one split, in the order of the data; `columns` and `names` as for `load_records`.

    Bad rows, such as those with equal sides, are left out up to a tenth (`RowCounts`). Raises MissingSplit when there is no such
    split, UserError that names the row for one that cannot be read, and for one that lacks the margin that others have.
    """
    rows = load_rows(data_path, split, columns, names)
    counts = RowCounts(f"{data_path}, {split}")
    with naming_columns(columns):
        pairs = counts.read(rows, lambda placed: _pair(placed[1], placed[0], counts))
    counts.log()
    without = [pair.where for pair in pairs if pair.margin is None]
    if 0 < len(without) < len(pairs):
        raise UserError(f"{without[0]}: has no 'margin', but other rows have one; give all rows a margin, or none")
    return pairs


def split_by_prompt(
    pairs: Sequence[PreferencePair], share: float, seed: int
) -> tuple[list[PreferencePair], list[PreferencePair]]:
    """Pairs to learn from, and pairs held out: about a `share` of the prompts, drawn by `seed`. No prompt is in both.

    Raises UserError when there are fewer than two prompts.
    """
    prompts = list(dict.fromkeys(pair.prompt for pair in pairs))
    if len(prompts) < 2:
        raise UserError(
            f"data_path: the {len(pairs)} pairs have {len(prompts)} prompt, but some prompts are held out for the report; "
            "give pairs of more prompts"
        )
    count = min(max(1, round(share * len(prompts))), len(prompts) - 1)
    held = set(random.Random(seed).sample(prompts, count))
    return [pair for pair in pairs if pair.prompt not in held], [pair for pair in pairs if pair.prompt in held]


def _shared_prefix(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The turns, or characters, that both begin with."""
    return [a for a, _ in itertools.takewhile(lambda both: both[0] == both[1], zip(first, second, strict=False))]


def _pair(row: Row, where: str, counts: RowCounts) -> PreferencePair:
    chosen, rejected, used = read_sides(row, where)
    counts.note(row, {*used, "reference", "margin"}, in_meta=False)
    note_keys(row, counts)
    reference = row.get("reference")
    text = reference.strip() if isinstance(reference, str) else None
    margin = _margin(row.get("margin"), where)
    return PreferencePair(_dialogue(chosen, text), _dialogue(rejected, text), margin, where)


def note_keys(row: Row, counts: RowCounts) -> None:
    """Count the keys of a row's messages that hold text and are not read."""
    items = [item for value in row.values() if isinstance(value, list) for item in value]
    counts.note({f"{key} of a turn": text for key, text in unused_keys(items, ()).items()}, (), in_meta=False)


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
    return chosen, rejected, used | {*SIDES}


def read_prompt(row: Row, where: str) -> tuple[Messages, set[str]]:
    """The messages before the replies, each with a role, and the columns that they are in. Raises as `read_sides` does."""
    keys = (*PROMPT_KEYS, *TURN_KEYS)
    prompt, used, _ = prompt_messages(row, where, keys)
    what = first_filled(keys, row) or "prompt"
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
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and math.isfinite(float(value)):
            return float(value)
    raise UserError(f"{where}: 'margin' holds {value!r:.60}, wanted a finite number")
