"""TRL's columns: `prompt, completion, label` (KTO) and `prompt, chosen, rejected` (DPO), as text or as messages."""

import itertools
import re
from typing import Any

from rlhf_dialog.data.preferences import LONG_ENOUGH
from rlhf_dialog.data.sources.rows import Row
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.examples import Examples
from rlhf_dialog.feedback.store.formats import record

NEEDED = {"kto": ("prompt", "completion", "label"), "dpo": ("chosen", "rejected")}
OPTIONAL = {
    "kto": ("id", "user_id"),
    "dpo": ("prompt", "margin", "score_chosen", "score_rejected", "chosen_score", "rejected_score", "id", "user_id"),
}
LABELS = {True: True, False: False, "true": True, "false": False, "1": True, "0": False}  # also 1 and 0


def export_rows(examples: Examples, form: str, messages: bool) -> list[Row]:
    """The rows of an export: KTO's of thumbs and scores, DPO's of edits and choices."""

    def prompt(turns: tuple[str, ...]) -> Any:
        roles = ["user" if number % 2 == 0 else "assistant" for number in range(len(turns))][::-1]
        messages_of_prompt = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=True)]
        return messages_of_prompt if messages else "\n".join(turns)

    def reply(text: str) -> Any:
        return [{"role": "assistant", "content": text}] if messages else text

    if form == "kto":
        return [
            {"prompt": prompt(example.prompt_turns), "completion": reply(example.response), "label": example.liked}
            for example in examples.answers
        ]
    return [
        {"prompt": prompt(example.prompt_turns), "chosen": reply(example.chosen), "rejected": reply(example.rejected)}
        for example in examples.pairs
    ]


def detect_format(row: Row) -> str | None:
    """`kto` or `dpo` for columns that are those of TRL."""
    return next((form for form, needed in NEEDED.items() if set(needed) <= set(row)), None)


def read(rows: list[tuple[str, Row]], form: str) -> record.ImportResult:
    """The examples. Raises UserError for an unknown column, the first row that is wrong, and more than a few without text."""
    imported = record.ImportResult(form)
    for where, row in rows:
        record.check_columns(row, (*NEEDED[form], *OPTIONAL[form]), f"TRL's {form.upper()} format", where)
        unread: set[str] = set()
        try:
            imported.records.append(_record(row, form, where, unread))
        except record.LeftOut as error:
            imported.leave_out(str(error))
        except record.BadRow as error:
            imported.bad.append(str(error))
        else:
            imported.unread.update(unread)
    imported.check_bad(len(rows))
    return imported


def _record(row: Row, form: str, where: str, unread: set[str]) -> record.Record:
    if missing := [name for name in NEEDED[form] if row.get(name) is None]:
        raise record.BadRow(f"{where}: has no '{missing[0]}'; it needs {', '.join(NEEDED[form])}")
    person = None if row.get("user_id") is None else str(row["user_id"])
    prompt = [] if row.get("prompt") is None else record.read_messages(row["prompt"], where, unread)
    if form == "kto":
        before, answer = _side(row["completion"], where, unread)
        judgement = record.Judgement("thumb", 0, 1 if _label(row["label"], where) else -1, person=person)
        answers = [answer]
    else:
        prompt, before, answers = _pair(prompt, row, where, unread)
        judgement = record.Judgement("choice", 0, other=1, person=person)
    if prompt == before[: len(prompt)]:  # what is answered may repeat the prompt
        prompt = []
    turns = prompt + before
    return record.make_record(turns, answers, [judgement], group="\n".join(text for _, text in turns), where=where)


def _side(value: Any, where: str, unread: set[str]) -> tuple[list[record.Utterance], str]:
    """The turns before the answer, and the answer: the last message, or the text."""
    turns = record.read_messages(value, where, unread)
    if not turns or (isinstance(value, list) and turns[-1][0] != "agent"):
        raise UserError(
            f"{where}: found {str(value)[:60]!r} as the answer, wanted a text or messages that end with one"
        )
    return turns[:-1], turns[-1][1]


def _pair(
    prompt: list[record.Utterance], row: Row, where: str, unread: set[str]
) -> tuple[list[record.Utterance], list[record.Utterance], list[str]]:
    """The prompt, what both sides have before their answers, and the answers."""
    (before, chosen), (before_other, rejected) = (_side(row[name], where, unread) for name in ("chosen", "rejected"))
    if before != before_other:
        raise UserError(f"{where}: 'chosen' and 'rejected' answer different messages; remove the row")
    if not prompt and not before and isinstance(row["chosen"], str):
        shared = _find_shared_beginning(chosen, rejected)
        prompt = [("user", shared)] if shared else []
        chosen, rejected = (text.removeprefix(shared).strip() for text in (chosen, rejected))
    if not chosen or not rejected or chosen == rejected:
        raise record.BadRow(f"{where}: 'chosen' and 'rejected' are the same, or one is empty; remove the row")
    return prompt, before, [chosen, rejected]


def _find_shared_beginning(first: str, second: str) -> str:
    """What two texts begin with, up to a space: the prompt of a data set that has no column for it."""
    same = itertools.takewhile(lambda both: both[0] == both[1], zip(first, second, strict=False))
    shared = re.sub(r"\s\S*$", "", "".join(letter for letter, _ in same))
    return shared if len(shared) >= LONG_ENOUGH else ""


def _label(value: Any, where: str) -> bool:
    key = value.strip().lower() if isinstance(value, str) else value
    if not isinstance(key, str | bool | int | float) or key not in LABELS:
        raise UserError(f"{where}: 'label' holds {value!r:.60}, wanted true (liked) or false (disliked)")
    return LABELS[key]
