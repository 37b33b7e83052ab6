"""What a request for an answer asks: the body of OpenAI's chat completions, read and checked."""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from rlhf_dialog.data.dialogue import BLANK_LINE
from rlhf_dialog.feedback.store.store import storable

MAX_STOPS, MAX_STOP_CHARS = 4, 200
MAX_NAMED = 20  # ignored keys that are named
LEADING = ("system", "developer")
SPEAKERS = {"user": "user", "assistant": "agent"}
READ = {
    *("model", "messages", "stream", "stream_options", "temperature", "top_p", "max_tokens", "max_completion_tokens"),
    *("stop", "n", "seed", "user"),
}


class ApiError(Exception):
    """A request that is not answered, with OpenAI's parts of an error: HTTP status, message, type, code, and what it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        type: str = "invalid_request_error",
        code: str | None = None,
        *,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.type, self.code, self.param = status, message, type, code, param
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        """The error object."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class ChatRequest:
    """A checked request. None is what was not said.

    >>> read_chat_request({"model": "bot", "messages": [{"role": "user", "content": "Is it far?"}]}).turns
    ('Is it far?',)
    """

    model: str
    turns: tuple[str, ...]  # of user and agent in turn, the last one the user's
    system: str | None
    stream: bool
    include_usage: bool
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    stop: tuple[str, ...]
    n: int
    seed: int | None
    user: str | None
    ignored: tuple[str, ...]  # names of keys that have no effect
    digest: str  # of the whole body


def read_chat_request(body: Any) -> ChatRequest:
    """The request in a body of JSON. Raises ApiError, 400, with the key that is wrong, what was found and what to do."""
    if not isinstance(body, dict):
        raise _wrong("the body", body, "an object with model and messages")
    options = body.get("stream_options")
    if not isinstance(options, dict | None):
        raise _wrong("stream_options", options, "an object")
    system, turns = _read_messages(body.get("messages"))
    longest = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    return ChatRequest(
        model=_read(body, "model", str, "the name of a model, such as those of /v1/models", required=True),
        turns=turns,
        system=system,
        stream=_read(body, "stream", bool, "true or false") or False,
        include_usage=_read(options or {}, "include_usage", bool, "true or false") or False,
        temperature=_read_number(body, "temperature", 2),
        top_p=_read_number(body, "top_p", 1),
        max_tokens=_read_count(body, longest, 10**9),
        stop=_read_stop(body.get("stop")),
        n=_read_count(body, "n", 2) or 1,
        seed=_read(body, "seed", int, "a whole number"),
        user=_read(body, "user", str, "a text"),
        ignored=tuple(sorted(key for key in body if key not in READ and body[key] not in (None, [], {}))),
        digest=sha256(json.dumps(body, sort_keys=True).encode()).hexdigest(),
    )


def names_of(ignored: tuple[str, ...]) -> str:
    """The ignored keys as a response header and a log show them: a stranger's text is not among them."""
    plain = [key for key in ignored if key.isascii() and key.replace("_", "").isalnum() and len(key) <= 40]
    more = ["..."] if len(plain) > MAX_NAMED or len(plain) < len(ignored) else []
    return ", ".join([*plain[:MAX_NAMED], *more])


def plain_text(text: str) -> str:
    """A text as it is stored and compared: line ends as LF, nothing around it, and no halves of characters."""
    return storable(text.replace("\r\n", "\n").replace("\r", "\n")).strip()


def _read_messages(messages: Any) -> tuple[str | None, tuple[str, ...]]:
    """The system message, and the turns: messages of one speaker that follow each other are one, with a blank line between."""
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", messages, "a list of messages")
    system, turns, speakers = None, list[str](), list[str]()
    for number, message in enumerate(messages):
        place = f"messages[{number}]"
        if not isinstance(message, dict):
            raise _wrong(place, message, "an object with role and content")
        role, text = message.get("role"), _read_content(message, place)
        if role in LEADING:
            if number > 0:
                raise _refuse(f"{place}.role", f"a {role} message can only be the first message; put its text there")
            system = text or None
            continue
        if not isinstance(role, str) or role not in SPEAKERS:
            raise _wrong(f"{place}.role", role, "user or assistant")
        if speakers and speakers[-1] == role:
            turns[-1] = BLANK_LINE.join(filter(None, (turns[-1], text)))
        else:
            turns.append(text)
            speakers.append(role)
    if not speakers or speakers[-1] != "user" or not turns[-1]:
        found = "none of a user" if "user" not in speakers else f"the {speakers[-1]}'s, or empty"
        raise _refuse(
            "messages", f"the last one must be what a user says, but it is {found}; add what is to be answered"
        )
    return system, tuple(turns)


def _read_content(message: dict[str, Any], place: str) -> str:
    """The text of a message. Raises ApiError where it holds anything else."""
    role, content = message.get("role"), message.get("content")
    if role in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
        raise _refuse(place, "it holds the call of a tool, which this bot cannot read; leave such messages out")
    if isinstance(content, list):
        texts = []
        for number, part in enumerate(content):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text" or not isinstance(part.get("text"), str):
                what = kind if isinstance(kind, str) and kind.isidentifier() and len(kind) <= 40 else "something else"
                raise _refuse(
                    f"{place}.content[{number}]", f"holds {what}, but this bot reads text alone; leave it out"
                )
            texts.append(part["text"])
        content = "\n".join(texts)
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, str):
        raise _wrong(f"{place}.content", content, "a text")
    return plain_text(content)


def _read(body: dict[str, Any], key: str, kind: type, wanted: str, required: bool = False) -> Any:
    value = body.get(key)
    if (value is None and required) or (value is not None and type(value) is not kind):
        raise _wrong(key, value, wanted)
    return value


def _read_number(body: dict[str, Any], key: str, most: float) -> float | None:
    value = body.get(key)
    if value is not None and (type(value) not in (int, float) or not 0 <= value <= most):
        raise _wrong(key, value, f"0 to {most}")
    return None if value is None else float(value)


def _read_count(body: dict[str, Any], key: str, most: int) -> int | None:
    value = body.get(key)
    if value is not None and (type(value) is not int or not 1 <= value <= most):
        raise _wrong(key, value, f"a whole number from 1 to {most}")
    return value


def _read_stop(stop: Any) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(x, str) and 0 < len(x) <= MAX_STOP_CHARS for x in stops):
        raise _wrong("stop", stop, f"texts of 1 to {MAX_STOP_CHARS} characters")
    if len(stops) > MAX_STOPS:
        raise _refuse("stop", f"has {len(stops)} texts; give at most {MAX_STOPS}")
    return tuple(text.replace("\r\n", "\n") for text in stops)


def _wrong(key: str, found: Any, wanted: str) -> ApiError:
    if found is None:
        return _refuse(key, f"is missing; give {wanted}")
    shown = json.dumps(found) if isinstance(found, bool | int | float | str) else f"a {type(found).__name__}"
    return _refuse(key, f"found {shown:.60}, wanted {wanted}")


def _refuse(key: str, what: str) -> ApiError:
    return ApiError(400, f"{key}: {what}", param=key)
