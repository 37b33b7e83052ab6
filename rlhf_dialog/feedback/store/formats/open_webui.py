"""Open WebUI's feedback export (Admin settings, Evaluations, Feedbacks): a JSON list of ratings, each with its whole chat.

Its front end writes into a message's text what the model did besides answering, as `<details type="...">`: thoughts, calls of
tools, code that was run. These are no text of a reply. A rating of a chat with images or files, and of a reply of another model
than the one that most ratings are of, is left out.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from rlhf_dialog.data.sources.rows import Row
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats import record

COLUMNS = ("id", "user_id", "version", "type", "data", "meta", "snapshot", "created_at", "updated_at", "user")
RATINGS = {1: 1, -1: -1, "1": 1, "-1": -1}
DATA_READ = ("rating", "reason", "comment", "model_id", "sibling_model_ids", "details")
DETAILS = re.compile(r"""<(/?)details\b((?:"[^"]*"|'[^']*'|[^>"'])*)>""", re.IGNORECASE)
TYPE = re.compile(r"""\btype\s*=\s*["']?(\w+)""")
TAGS = "think|thinking|reason|reasoning|thought"
THOUGHT = re.compile(rf"\A.*</(?:{TAGS})>|\A\s*<(?:{TAGS})>.*", re.DOTALL | re.IGNORECASE)
IMAGE = re.compile(r"!\[[^\]]*\]\(")


@dataclass(frozen=True)
class RatedReply:
    """What a row says: the turns before the reply, the reply, its model, and the judgement of it."""

    before: list[record.Utterance]
    reply: str
    model: str | None
    judgement: record.Judgement
    group: str
    where: str


def is_export(row: Row) -> bool:
    """Whether the object is one of the export."""
    return {"user_id", "type", "data", "meta", "snapshot"} <= set(row)


def read(rows: list[tuple[str, Row]], model: str | None = None) -> record.ImportResult:
    """A thumb on the rated message of each chat, with reason and comment; an edit for a liked reply that the person has edited.

    model: whose replies are read; None: that of most ratings. Raises UserError for an unknown column, and an unknown model.
    """
    imported = record.ImportResult("open-webui")
    replies, named = [], Counter[str]()
    for where, row in sorted(rows, key=lambda pair: _time(pair[1]) or 0):
        record.check_columns(row, COLUMNS, "Open WebUI's feedback export", where)
        named.update([str(_dict(row["meta"]).get("model_id"))])
        try:
            replies.append(_rated_reply(row, where, imported))
        except record.LeftOut as error:
            imported.leave_out(str(error))
    counts = Counter(one.model for one in replies if one.model)
    if model is not None and model not in counts:
        found = ", ".join(map(str, counts)) or "none"
        raise UserError(f"--model: no rating is of a reply of '{model:.60}'; found are {found}")
    model = model or max(counts, key=lambda name: (counts[name], named[name]), default=None)
    for one in replies:
        if one.model in (None, model):
            imported.records.append(
                record.make_record(one.before, [one.reply], [one.judgement], group=one.group, where=one.where)
            )
        else:
            imported.leave_out(f"ratings of replies of other models than {model} (--model chooses another)")
    return imported


def _rated_reply(row: Row, where: str, imported: record.ImportResult) -> RatedReply:
    """Raises LeftOut for a row that is not read."""
    data, meta = _dict(row["data"]), _dict(row["meta"])
    rating = data.get("rating")
    value = RATINGS.get(rating) if isinstance(rating, str | int | float) else None
    if row["type"] != "rating" or value is None:
        raise record.LeftOut("feedback without a rating")
    chat = _dict(_dict(row["snapshot"]).get("chat"))
    talk = _dict(chat.get("chat"))
    path = _path(_dict(_dict(talk.get("history")).get("messages")), meta.get("message_id"))
    rated, unread = path[-1], {f"data.{key}" for key, one in data.items() if key not in DATA_READ and one}
    if rated.get("role") == "user":
        raise record.LeftOut("ratings of a message of the user")
    if rated.get("error") or rated.get("done") is False:
        raise record.LeftOut("ratings of replies that did not end")
    if any(map(_has_image, path)):
        raise record.LeftOut("ratings of chats with images or files")
    if _dict(talk.get("params")).get("system"):
        unread.add("system prompts")
    turns = [(speaker, text) for one in path for speaker, text in _utterances(one, one is rated, unread)]
    if turns[-1][0] != "agent":
        raise record.LeftOut("ratings of a message that is no reply")
    words = [str(data[key]).strip() for key in ("reason", "comment") if data.get(key)]
    person = None if row["user_id"] is None else str(row["user_id"])
    judgement = record.Judgement("thumb", 0, value, ": ".join(words) or None, person=person, created=_time(row))
    reply, first = turns[-1][1], shown_text(str(rated.get("originalContent") or ""), set())
    if first and first != reply:  # "Edit" and "Save" in its front end
        if value < 0:
            raise record.LeftOut("ratings of replies that were edited and not liked")
        judgement = record.Judgement("edit", 0, text=reply, person=person, created=_time(row))
        reply = first
    model = data.get("model_id") or rated.get("selectedModelId") or rated.get("model")
    imported.unread.update(unread)
    group = str(meta.get("chat_id") or chat.get("id") or row.get("id"))
    return RatedReply(turns[:-1], reply, str(model) if model else None, judgement, group, where)


def _path(messages: Row, name: Any) -> list[Row]:
    """The messages from the first one to `name`, along the parents. Raises LeftOut when one is missing."""
    path: list[Row] = []
    seen = set()
    while name is not None:
        message = messages.get(name) if isinstance(name, str) else None
        if not isinstance(message, dict) or name in seen:
            raise record.LeftOut("ratings without the text of their chat")
        seen.add(name)
        path.append(message)
        name = message.get("parentId")
    if not path:
        raise record.LeftOut("ratings without the text of their chat")
    return path[::-1]


def _utterances(message: Row, is_rated: bool, unread: set[str]) -> list[record.Utterance]:
    """The turn that a message is, or none; `unread` gets what is not read of it. Raises LeftOut when it has no text."""
    role = message.get("role")
    if role not in ("user", "assistant"):
        unread.add("system prompts" if role == "system" else f"messages of the role '{str(role)[:40]}'")
        return []
    if message.get("sources"):
        unread.add("sources of a reply")
    merged = (
        None if is_rated else _dict(message.get("merged")).get("content")
    )  # of several models, which the chat goes on with
    text = merged or record.message_text(message) or _output_text(message)
    text = str(text or "").strip() if role == "user" else shown_text(str(text or ""), unread)
    if not text:
        raise record.LeftOut("ratings without the text of their chat")
    return [("user" if role == "user" else "agent", text)]


def shown_text(text: str, unread: set[str]) -> str:
    """A reply's text without blocks of the front end, whatever is nested in them, and without thoughts in tags of the model."""
    kept, depth, start = [], 0, 0
    for tag in DETAILS.finditer(text):
        is_end, kind = bool(tag[1]), TYPE.search(tag[2])
        if depth:
            depth += -1 if is_end else 1
            start = tag.end()
        elif kind and not is_end:  # without a type it is the model's own
            unread.add(f"blocks of {kind[1]}")
            kept.append(text[start : tag.start()])
            depth = 1
    kept.append("" if depth else text[start:])
    return THOUGHT.sub("", "".join(kept)).strip()


def _output_text(message: Row) -> str:
    """The texts in the items of a reply whose content is empty, as newer versions store it."""
    output = message.get("output")
    items = output if isinstance(output, list) else []
    parts = [
        part for item in items if _dict(item).get("type") == "message" for part in _dict(item).get("content") or []
    ]
    return "\n".join(str(part["text"]) for part in map(_dict, parts) if isinstance(part.get("text"), str))


def _has_image(message: Row) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    others = any(_dict(part).get("type", "text") != "text" for part in parts)
    return bool(message.get("files")) or others or (isinstance(content, str) and bool(IMAGE.search(content)))


def _time(row: Row) -> float | None:
    value = row.get("updated_at") or row.get("created_at")
    return float(value) if isinstance(value, int | float) else None


def _dict(value: Any) -> Row:
    return value if isinstance(value, dict) else {}
