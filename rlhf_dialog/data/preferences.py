"""Preference pairs: two replies to the same prompt, of which one was preferred. docs/REWARDS.md shows the rows."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.sources import NO_COLUMNS, load_rows
from rlhf_dialog.data.sources.columns import Columns
from rlhf_dialog.data.sources.messages import Messages, drop_tools, first_filled, read_role, split_messages
from rlhf_dialog.data.sources.record import checked_text, is_null, kind
from rlhf_dialog.data.sources.rows import PROMPT_KEYS, Row, prompt_in
from rlhf_dialog.data.speakers import BLANK_LINE, USER_ROLES, join_turns, read_speakers
from rlhf_dialog.errors import UserError, nearest

SIDES = ("chosen", "rejected")
SCORES = (("score_chosen", "score_rejected"), ("chosen_score", "rejected_score"))
LONG_ENOUGH = 20  # characters that two texts without a prompt share, so that they count as its text


@dataclass(frozen=True)
class PreferencePair:
    """Two replies to one prompt.

    >>> PreferencePair(
    ...     chosen=Dialogue(["Is it far ?"], "Two streets ."),
    ...     rejected=Dialogue(["Is it far ?"], "Yes ."),
    ...     margin=None,
    ...     where="pairs.jsonl, line 1",
    ... )
    """

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


def load_pairs(data_path: str, split: str, columns: Columns = NO_COLUMNS) -> list[PreferencePair]:
    """The pairs of one split, in the order of the data; `columns` as for `load_records`.

    Raises MissingSplit when there is no such split, UserError that names the row for one that cannot be used: a column is
    missing, a text is empty, both replies are the same; and when the scores of the data say that the columns are exchanged.
    """
    rows = list(drop_tools(load_rows(data_path, split, columns)))
    pairs = [_pair(row, where) for where, row in rows]
    _check_margins(pairs)
    _check_scores([row for _, row in rows], data_path)
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


def _pair(row: Row, where: str) -> PreferencePair:
    if missing := [name for name in SIDES if name not in row]:
        raise _no_column(row, missing[0], where)
    prompt = _prompt(prompt_in(row, first_filled(PROMPT_KEYS, row) or "prompt")[0], where)
    chosen, rejected = (_dialogue(prompt, _side(row[name], name, where), row) for name in SIDES)
    if chosen == rejected:
        raise UserError(f"{where}: 'chosen' and 'rejected' are the same, so there is nothing to learn; remove the row")
    return PreferencePair(chosen, rejected, _margin(row.get("margin"), where), where)


def _dialogue(prompt: Messages, side: Messages, row: Row) -> Dialogue:
    """The prompt and the reply of one side; messages of one role in a row are one turn."""
    reference, turns = row.get("reference"), [*prompt.turns, *side.turns]
    if any(prompt.roles + side.roles):
        roles = [role or "user" for role in prompt.roles] + [role or "assistant" for role in side.roles]
        if speakers := read_speakers(roles):
            turns = [turn.text for turn in join_turns(turns, speakers)]
    return Dialogue(
        turns[:-1],
        turns[-1],
        reference=reference.strip() if isinstance(reference, str) else None,
        system=BLANK_LINE.join(text for _, text in prompt.system + side.system) or None,
    )


def _prompt(value: Any, where: str) -> Messages:
    if is_null(value):
        return Messages()
    if not isinstance(value, str | list):
        raise UserError(f"{where}: 'prompt' holds {kind(value)}, wanted a string, a list of turns or messages")
    messages = split_messages([value] if isinstance(value, str) else value, where)
    messages.turns = [checked_text(turn, f"turn {i} of 'prompt'", where) for i, turn in enumerate(messages.turns, 1)]
    return messages


def _side(value: Any, name: str, where: str) -> Messages:
    """The text of one side, or its messages, of which the last one is the reply."""
    if not isinstance(value, str | list):
        raise UserError(f"{where}: '{name}' holds {kind(value)}, wanted the reply as a string, or messages")
    items = [value] if isinstance(value, str) else value
    if items and read_role(items[-1]) in USER_ROLES:
        raise UserError(
            f"{where}: '{name}' ends with a message of the {read_role(items[-1])}; its last one must be the reply"
        )
    messages = split_messages(items, where)
    if not messages.turns:
        raise UserError(f"{where}: '{name}' holds no message; its last one must be the reply")
    messages.turns = [checked_text(turn, f"'{name}'", where) for turn in messages.turns]
    return messages


def _margin(value: Any, where: str) -> float | None:
    if is_null(value):
        return None
    try:
        margin = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        margin = math.nan
    if not math.isfinite(margin):
        raise UserError(f"{where}: 'margin' holds {value!r:.60}, wanted a finite number")
    return margin


def _check_margins(pairs: list[PreferencePair]) -> None:
    without = [pair for pair in pairs if pair.margin is None]
    if without and len(without) < len(pairs):
        raise UserError(
            f"{without[0].where}: has no 'margin', but {len(pairs) - len(without)} other rows have one; give all rows a margin, "
            "or none"
        )


def _check_scores(rows: list[Row], data_path: str) -> None:
    """Raises UserError when the scores beside the replies are more often higher for the rejected one."""
    for names in SCORES:
        pairs = [pair for pair in _scores(rows, names) if pair[0] != pair[1]]
        lower = sum(chosen < rejected for chosen, rejected in pairs)
        if lower > len(pairs) / 2:
            raise UserError(
                f"{data_path}: {names[0]} is lower than {names[1]} in {lower} of {len(pairs)} rows, so the columns 'chosen' "
                "and 'rejected' seem to be exchanged; exchange them, or remove the columns of the scores"
            )


def _scores(rows: list[Row], names: tuple[str, str]) -> Iterator[tuple[float, float]]:
    for row in rows:
        chosen, rejected = (row.get(name) for name in names)
        if isinstance(chosen, int | float) and isinstance(rejected, int | float):
            yield float(chosen), float(rejected)


def _no_column(row: Row, name: str, where: str) -> UserError:
    columns = ", ".join(f"'{key!s:.40}'" for key in list(row)[:20]) or "nothing"
    hint = next((hint for key in row if (hint := nearest(str(key).lower(), SIDES))), "")
    return UserError(
        f"{where}: there is no column '{name}'; a pair needs 'chosen' and 'rejected', and may have 'prompt' and 'margin'; "
        f"found {columns}{hint}"
    )
