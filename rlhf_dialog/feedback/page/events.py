"""What a browser may send of an event: the parts that the page's functions take, of their types. The rest is left out."""

import json
import re
from collections.abc import Mapping
from typing import Any

from rlhf_dialog.errors import UserError

SESSION = re.compile(r"\w{1,64}", re.ASCII)
MALFORMED = "this is not an event of this page; load it again"


class Events:
    """The events of a page as Gradio describes them."""

    def __init__(self, demo: Any):
        self._functions: Mapping[int, Any] = demo.fns

    def joined(self, sent: Any) -> dict[str, Any]:
        """An event, with what it needs alone. Raises UserError when it is none of this page's."""
        number, session = sent.get("fn_index"), sent.get("session_hash")
        if type(number) is not int or number not in self._functions or not is_session(session):
            raise UserError(MALFORMED)
        function, data = self._functions[number], sent.get("data")
        if not isinstance(data, list) or len(data) != len(function.inputs):
            raise UserError(MALFORMED)
        if not all(_fits(value, part) for value, part in zip(data, function.inputs, strict=True)):
            raise UserError(MALFORMED)
        trigger = sent.get("trigger_id")
        event = {"fn_index": number, "session_hash": session, "data": data}
        event["trigger_id"] = trigger if type(trigger) is int else None
        if any(name == "like" for _, name in function.targets):
            event["event_data"] = _liked(sent.get("event_data"))
        return event

    def ended(self, sent: Any) -> dict[str, Any]:
        """What ends an event, as `joined`; Gradio needs no page and no number for its second way to say it."""
        event = {"session_hash": "", "fn_index": 0, **sent}
        if not is_session(event.get("event_id")) or not is_session(event["session_hash"] or "none"):
            raise UserError(MALFORMED)
        if type(event["fn_index"]) is not int:
            raise UserError(MALFORMED)
        return {name: event[name] for name in ("session_hash", "event_id", "fn_index")}


def read_json(body: bytes) -> dict[str, Any]:
    """The object in a body of Unicode text. Raises UserError."""
    try:
        sent = json.loads(body)
        json.dumps(sent, ensure_ascii=False, allow_nan=False).encode()  # half characters cannot be stored
    except (ValueError, RecursionError) as error:
        raise UserError(MALFORMED) from error
    if not isinstance(sent, dict):
        raise UserError(MALFORMED)
    return sent


def is_session(value: Any) -> bool:
    """Whether it can be the name of a page, as browsers make them up."""
    return isinstance(value, str) and SESSION.fullmatch(value) is not None


def _fits(value: Any, part: Any) -> bool:
    """Whether a part of the page can hold the value."""
    kind = part.get_block_name()
    if kind == "radio":
        return value is None or (type(value) is int and value in [one for _, one in part.choices])
    return isinstance(value, str) or (value is None and kind == "dropdown")


def _liked(sent: Any) -> dict[str, Any]:
    """A thumb: at which message, and which one."""
    index, liked = (sent.get("index"), sent.get("liked")) if isinstance(sent, dict) else (None, None)
    place = index[0] if isinstance(index, list) and index else index
    if type(place) is not int or not isinstance(liked, str | bool | None):
        raise UserError(MALFORMED)
    return {"index": place, "value": "", "liked": liked}
