"""The events that a browser sends: JSON objects, of which the page uses a few fields."""

import json
import re
from typing import Any

from rlhf_dialog.errors import UserError

SESSION = re.compile(r"\w{1,64}", re.ASCII)  # the name of a page (a browser's tab), as browsers make them up
FIELDS = ("fn_index", "session_hash", "data", "trigger_id", "event_data", "event_id")


def read_event(body: bytes) -> dict[str, Any]:
    """An event with the fields that the page uses. Raises UserError for a body that is none.

    The values of its parts are texts and numbers: Gradio would take an object for a file.
    """
    try:
        sent = json.loads(body)
        event = {name: sent[name] for name in FIELDS if name in sent}
        json.dumps(event, ensure_ascii=False, allow_nan=False).encode()  # half characters cannot be stored
        is_valid = isinstance(sent, dict) and all(
            isinstance(value, str | int | None) for value in event.get("data", [])
        )
        is_valid &= all(
            SESSION.fullmatch(event[name]) is not None for name in ("session_hash", "event_id") if name in event
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise UserError("this is not an event of this page; load it again")
    return event
