"""Argilla's records (2.x): a JSON list (`records.to_json`), or a table (`records.to_datasets`).

A ranking, or a label that names a field, is a choice between answers; a rating of 1 to 5 is a score. Suggestions, which come
from models, do not count.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rlhf_dialog.data.sources.rows import Row
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats.record import Found, Judgement, answered, check_columns, said_in, text_of

NESTED = ("id", "fields", "metadata", "suggestions", "responses", "vectors", "_server_id", "score")
PROMPTS = ("instruction", "prompt", "input", "question", "chat", "messages", "conversation")
ANSWER = re.compile(
    r"(response|reply|generation|completion|answer|output|chosen|rejected)s?[-_ ]?\w{0,9}", re.IGNORECASE
)
SHOWN = "response1, response2, reply_1, generation-0, completion, answer, output, chosen, rejected"
# columns of a question in a table
LATER = re.compile(r"(.+)\.(responses(\.users|\.status)?|suggestion(\.score|\.agent)?)")
RATED = re.compile(r"[-_ .]?(rating|score)$", re.IGNORECASE)


def is_records(row: Row) -> bool:
    """Whether the row is a record of Argilla."""
    return {"fields", "responses"} <= set(row) or any(LATER.fullmatch(name) for name in row)


def read(rows: list[tuple[str, Row]], ignored: tuple[str, ...] = ()) -> Found:
    """Choices and scores. Raises UserError for an unknown column, and when no row has a judgement of a person."""
    imported = Found("argilla")
    for where, row in rows:
        if "fields" in row:
            check_columns(row, NESTED, "a record of Argilla", where)
        try:
            fields, responses = _nested(row, imported) if "fields" in row else _flat(row, imported)
        except (AttributeError, TypeError, ValueError) as error:
            raise UserError(
                f"{where}: its fields or responses are not those of a record of Argilla 2; export it with records.to_json "
                "of Argilla 2"
            ) from error
        fields = {name: value for name, value in fields.items() if name not in (*ignored, "id") and value is not None}
        prompts = [name for name in PROMPTS if name in fields]
        names = [name for name in fields if ANSWER.fullmatch(name) and name not in prompts]
        _check_fields(fields, prompts[:1] + names, where)
        answers = [text for name in names if (text := text_of(fields[name])) is not None]
        if len(answers) < len(names) or not answers:
            imported.leave_out("records in which an answer is not a text")
            continue
        judgements = [one for response in responses for one in _judgements(*response, names, imported)]
        if judgements:
            prompt = said_in(fields[prompts[0]], where) if prompts else []
            group = "\n".join(text for _, text in prompt)
            imported.records.append(answered(prompt, answers, judgements, group=group, where=where))
        else:
            imported.leave_out("records without a choice or a rating of a person")
    if rows and not imported.records:
        reasons = "; ".join(imported.left_out)
        raise UserError(f"{rows[0][0]}: there is nothing to learn from in these records ({reasons}); name another file")
    return imported


def _check_fields(fields: Row, known: list[str], where: str) -> None:
    if unknown := [name for name in fields if name not in known]:
        raise UserError(
            f"{where}: the fields {', '.join(map(repr, unknown[:10]))} are not known; known as the prompt are "
            f"{', '.join(PROMPTS)} (one of them), as answers names like {SHOWN}; leave others out with --ignore "
            f"{','.join(unknown[:10])}"
        )


Response = tuple[str, Any, str | None]  # question, value, person


def _nested(row: Row, imported: Found) -> tuple[Row, list[Response]]:
    """`responses` is {question: [{"value": ..., "user_id": ...}]}."""
    responses = []
    for question, given in (row["responses"] or {}).items():
        for one in given or []:
            if one.get("status", "submitted") == "submitted":
                responses.append((question, one.get("value"), one.get("user_id")))
            else:
                imported.leave_out("responses that were not submitted")
    return dict(row["fields"] or {}), responses


def _flat(row: Row, imported: Found) -> tuple[Row, list[Response]]:
    """The columns `QUESTION.responses`, `QUESTION.responses.users` and `QUESTION.responses.status` are lists."""
    fields = {
        name: value for name, value in row.items() if not LATER.fullmatch(name) and name not in ("status", "_server_id")
    }
    responses = []
    for name, values in row.items():
        if name.endswith(".responses") and values is not None:
            users = row.get(f"{name}.users") or [None] * len(values)
            states = row.get(f"{name}.status") or ["submitted"] * len(values)
            for value, user, state in zip(values, users, states, strict=True):
                if state in ("submitted", None):
                    responses.append((name.removesuffix(".responses"), value, user))
                else:
                    imported.leave_out("responses that were not submitted")
    return fields, responses


def _judgements(
    question: str, value: Any, person: str | None, names: Sequence[str], imported: Found
) -> Iterator[Judgement]:
    """What one person's answer to one question says of the answers `names`."""
    ranked = _ranked(value, names)
    rated = [name for name in names if name == RATED.sub("", question)] or (list(names) if len(names) == 1 else [])
    for better, worse in ranked:
        yield Judgement("choice", names.index(better), other=names.index(worse), person=person)
    if ranked:
        return
    if isinstance(value, int | float) and value in (1, 2, 3, 4, 5) and not isinstance(value, bool) and rated:
        yield Judgement("score", names.index(rated[0]), float(value), person=person)
    else:
        imported.leave_out(
            f"answers to the question {question!r:.60}, which are neither choice nor rating (1 to 5) of an answer"
        )


def _ranked(value: Any, names: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs (better, worse) of a ranking, neighbours only, or of a label that names the better answer."""
    if isinstance(value, str) and value in names:
        return [(value, name) for name in names if name != value]
    if not isinstance(value, list):
        return []
    ranks: list[tuple[Any, Any]] = [
        (one.get("value"), one.get("rank")) if isinstance(one, dict) else (one, None) for one in value
    ]
    ordered = [(name, number if rank is None else rank) for number, (name, rank) in enumerate(ranks)]
    if len(ordered) < 2 or not all(name in names and isinstance(rank, int | float) for name, rank in ordered):
        return []
    ordered.sort(key=lambda pair: pair[1])
    return [(a, b) for (a, first), (b, second) in itertools.pairwise(ordered) if first < second]
