"""Open WebUI's feedback export (Admin settings, Evaluations, Feedbacks): a JSON list of ratings, each with its whole chat."""

import re
from typing import Any

from rlhf_dialog.data.sources.rows import Row
from rlhf_dialog.feedback.store.formats import record

COLUMNS = ("id", "user_id", "version", "type", "data", "meta", "snapshot", "created_at", "updated_at", "user")
RATINGS = {1: 1, -1: -1, "1": 1, "-1": -1}
# which no model reads again
THOUGHT = re.compile(r"<details type=\"(reasoning|code_interpreter)\".*?</details>", re.DOTALL)


def is_export(row: Row) -> bool:
    """Whether the object is one of the export."""
    return {"user_id", "type", "data", "meta", "snapshot"} <= set(row)


def read(rows: list[tuple[str, Row]]) -> record.ImportResult:
    """A thumb on the rated message of each chat, with reason and comment. Raises UserError for an unknown column."""
    imported = record.ImportResult("open-webui")
    for where, row in sorted(rows, key=lambda pair: _time(pair[1]) or 0):
        record.check_columns(row, COLUMNS, "Open WebUI's feedback export", where)
        data, meta = _dict(row["data"]), _dict(row["meta"])
        rating = data.get("rating")
        value = RATINGS.get(rating) if isinstance(rating, str | int | float) else None
        chat = _dict(_dict(row["snapshot"]).get("chat"))
        turns = _path(_dict(_dict(_dict(chat.get("chat")).get("history")).get("messages")), meta.get("message_id"))
        if row["type"] != "rating" or value is None:
            imported.leave_out("feedback without a rating")
        elif not turns:
            imported.leave_out("ratings without the text of their chat")
        elif turns[-1][0] != "agent":
            imported.leave_out("ratings of a message of the user")
        else:
            words = [str(data[key]).strip() for key in ("reason", "comment") if data.get(key)]
            person = None if row["user_id"] is None else str(row["user_id"])
            judgement = record.Judgement("thumb", 0, value, ": ".join(words) or None, person=person, created=_time(row))
            group = str(meta.get("chat_id") or chat.get("id") or row.get("id"))
            imported.records.append(
                record.make_record(turns[:-1], [turns[-1][1]], [judgement], group=group, where=where)
            )
    return imported


def _path(messages: Row, name: Any) -> list[record.Utterance]:
    """The messages from the first one to `name`, along the parents; empty when a text is missing."""
    path: list[record.Utterance] = []
    seen = set()
    while name is not None:
        message = _dict(messages.get(name))
        text = THOUGHT.sub("", record.message_text(message) or "").strip()
        if not text or name in seen:
            return []
        seen.add(name)
        if message.get("role") != "system":
            path.append(("user" if message.get("role") == "user" else "agent", text))
        name = message.get("parentId")
    return path[::-1]


def _time(row: Row) -> float | None:
    value = row.get("updated_at") or row.get("created_at")
    return float(value) if isinstance(value, int | float) else None


def _dict(value: Any) -> Row:
    return value if isinstance(value, dict) else {}
