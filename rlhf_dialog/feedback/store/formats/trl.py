"""TRL's columns: `prompt, completion, label` (KTO) and `prompt, chosen, rejected` (DPO), as text or as messages."""

import itertools
import re
from collections.abc import Iterable
from typing import Any

from rlhf_dialog.data.preferences import LONG_ENOUGH, keys_of_turns, put_behind, read_prompt, read_side, read_sides
from rlhf_dialog.data.row_counts import BadRow, RowCounts
from rlhf_dialog.data.sources.messages import USER_ROLES
from rlhf_dialog.data.sources.record import checked_text, read_flag
from rlhf_dialog.data.sources.rows import Row
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.feedback.store.examples import AnswerPair, Example, RatedAnswer
from rlhf_dialog.feedback.store.formats.record import ImportedTurn, ImportResult, Judgement, Record

NEEDED = {"kto": ("prompt", "completion", "label"), "dpo": ("chosen", "rejected")}
OPTIONAL = {
    "kto": ("id", "user_id"),
    "dpo": ("prompt", "margin", "score_chosen", "score_rejected", "chosen_score", "rejected_score", "id", "user_id"),
}


def export_rows(examples: Iterable[Example], form: str) -> list[Row]:
    """The rows of an export, as messages with roles: KTO's of thumbs and scores, DPO's of edits and choices."""

    def prompt(one: Example) -> list[Row]:
        turns = one.prompt_turns
        system = [] if one.system is None else [{"role": "system", "content": one.system}]
        roles = ["user" if number % 2 == 0 else "assistant" for number in range(len(turns))][::-1]
        return system + [{"role": role, "content": text} for role, text in zip(roles, turns, strict=True)]

    def reply(text: str) -> list[Row]:
        return [{"role": "assistant", "content": text}]

    rows: list[Row] = []
    for one in examples:
        if isinstance(one, RatedAnswer) and form == "kto":
            rows.append({"prompt": prompt(one), "completion": reply(one.response), "label": one.liked})
        elif isinstance(one, AnswerPair) and form == "dpo":
            sides = {"chosen": reply(one.chosen), "rejected": reply(one.rejected)}
            rows.append({"prompt": prompt(one), **sides})
    return rows


def read(rows: list[tuple[str, Row]], form: str) -> ImportResult:
    """The examples. Bad rows are left out as from training data (`RowCounts`). Raises UserError for an unknown column or row."""
    imported, counts = ImportResult(form), RowCounts(rows[0][0].rpartition(",")[0] or form)
    imported.records = list(counts.read(rows, lambda placed: _record(placed[1], placed[0], form, counts)))
    for reason, number in counts.left_out.items():
        imported.left_out[f"rows with {reason}"] = number
    if counts.bad:
        imported.left_out[f"rows that cannot be used, the first: {counts.bad[0]}"] = counts.num_bad
    imported.unread = counts.unread.counts
    return imported


def _record(row: Row, where: str, form: str, counts: RowCounts) -> Record:
    _check_columns(row, form, where)
    if missing := [name for name in NEEDED[form] if name not in row or (name == "label" and row[name] is None)]:
        raise UserError(f"{where}: has no '{missing[0]}'; it needs {', '.join(NEEDED[form])}")
    if form == "kto":
        prompt, _ = read_prompt(row, where)
        if not prompt.turns:
            raise BadRow(f"{where}: 'prompt' holds no text")
        messages = put_behind(prompt, read_side(row["completion"], "completion", where))
        answers = [messages.turns[-1]]
    else:
        messages, other, _ = read_sides(row, where)
        answers = [messages.turns[-1], other.turns[-1]]
        if messages.turns[:-1] != other.turns[:-1]:
            raise UserError(f"{where}: 'chosen' and 'rejected' answer different messages; remove the row")
    roles = ("user" if role in USER_ROLES else "agent" for role in messages.roles)
    before = list(zip(roles, messages.turns, strict=True))[:-1]
    if form == "dpo" and not before:
        shared = _find_shared_beginning(*answers)
        before = [("user", shared)] if shared else []
        answers = [checked_text(text.removeprefix(shared), "a reply", where) for text in answers]
    begins = len(messages.system) == 1 and messages.system[0][0] == 0
    system = messages.system[0][1] if begins else None
    counts.unread.add(keys_of_turns(row) | {"system message": [] if begins else messages.system})
    person = None if row.get("user_id") is None else str(row["user_id"])
    place = len(before)
    turns = [ImportedTurn(number, *said) for number, said in enumerate(before)]
    turns += [ImportedTurn(place, "agent", answer) for answer in answers]
    if form == "kto":
        judgement = Judgement("thumb", place, 1 if _label(row["label"], where) else -1, person=person)
    else:
        judgement = Judgement("choice", place, other=place + 1, person=person)
    return Record(turns, [judgement], "\n".join(text for _, text in before), person, system=system)


def _check_columns(row: Row, form: str, where: str) -> None:
    """Raises UserError that names the columns which are not known."""
    columns = (*NEEDED[form], *OPTIONAL[form])
    if unknown := [name for name in row if name not in columns]:
        shown = ", ".join(f"'{name!s:.40}'" for name in unknown[:10])
        raise UserError(
            f"{where}: TRL's {form.upper()} format has no column {shown}{nearest(unknown[0], columns)}; known are "
            f"{', '.join(columns)}; leave others out with --ignore {','.join(map(str, unknown[:10]))}"
        )


def _find_shared_beginning(first: str, second: str) -> str:
    """What two texts begin with, up to a space: the prompt of a data set that has no column for it."""
    same = itertools.takewhile(lambda both: both[0] == both[1], zip(first, second, strict=False))
    shared = re.sub(r"\s\S*$", "", "".join(letter for letter, _ in same))
    return shared if len(shared) >= LONG_ENOUGH else ""


def _label(value: Any, where: str) -> bool:
    liked = read_flag(value)
    if liked is None:
        raise UserError(f"{where}: 'label' holds {value!r:.60}, wanted true (liked) or false (disliked)")
    return liked
