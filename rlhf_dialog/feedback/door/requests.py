"""What a request for an answer asks: the body of OpenAI's chat completions, read and checked."""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from rlhf_dialog.data.dialogue import BLANK_LINE
from rlhf_dialog.feedback.store.store import plain_text

MAX_NAMED = 20  # ignored keys that are named
LEADING = ("system", "developer")
SPEAKERS = {"user": "user", "assistant": "agent"}
Count = Annotated[int, Field(ge=1, le=10**9)]
StopText = Annotated[str, StringConstraints(min_length=1, max_length=200)]


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
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None


def _as_list(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


class ChatKeys(BaseModel):
    """The keys of a body that are read; null is as if a key was not there."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    stop: Annotated[list[StopText], Field(max_length=4), BeforeValidator(_as_list)] | None = None
    n: Annotated[int, Field(ge=1, le=2)] | None = None
    seed: int | None = None
    user: str | None = None


@dataclass(frozen=True)
class ChatRequest:
    """A checked request.

    >>> read_chat_request({"model": "bot", "messages": [{"role": "user", "content": "Is it far?"}]}).turns
    ('Is it far?',)
    """

    keys: ChatKeys
    turns: tuple[str, ...]  # of user and agent in turn, the last one the user's
    system: str | None
    digest: str  # of the whole body

    @property
    def num_choices(self) -> int:
        return self.keys.n or 1

    @property
    def includes_usage(self) -> bool:
        return self.keys.stream_options is not None and bool(self.keys.stream_options.include_usage)

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts before which an answer ends."""
        return tuple(text.replace("\r\n", "\n") for text in self.keys.stop or ())

    @property
    def ignored(self) -> list[str]:
        return sorted(key for key, value in (self.keys.model_extra or {}).items() if value not in (None, [], {}))


def read_chat_request(body: Any) -> ChatRequest:
    """The request in a body of JSON. Raises ApiError, 400, with the key that is wrong, what was found and what to do."""
    try:
        keys = ChatKeys.model_validate(body)
    except ValidationError as error:
        raise as_refusal(error) from None
    system, turns = _read_messages(keys.messages)
    return ChatRequest(keys, turns, system, sha256(json.dumps(body, sort_keys=True).encode()).hexdigest())


def as_refusal(error: ValidationError) -> ApiError:
    """The first mistake in a body, with its key."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"][:1]] + [f"[{part}]" for part in first["loc"] if isinstance(part, int)]
    key, found = ascii("".join(place))[1:-1][:40] or "the body", first["input"]
    shown = json.dumps(found) if isinstance(found, bool | int | float | str) else f"a {type(found).__name__}"
    what = "" if first["type"] in ("missing", "extra_forbidden") else f"found {shown:.60}: "
    return _refuse(key, f"{what}{first['msg']}")


def names_of(ignored: list[str]) -> str:
    """The ignored keys as a response header shows them: a stranger's text is not among them."""
    plain = [key for key in ignored if key.isascii() and key.replace("_", "").isalnum() and len(key) <= 40]
    more = ["..."] if len(plain) > MAX_NAMED or len(plain) < len(ignored) else []
    return ", ".join([*plain[:MAX_NAMED], *more])


def _read_messages(messages: list[dict[str, Any]]) -> tuple[str | None, tuple[str, ...]]:
    """The system message, and the turns: messages of one speaker that follow each other are one, with a blank line between."""
    system, turns, speakers = None, list[str](), list[str]()
    for number, message in enumerate(messages):
        place = f"messages[{number}]"
        role, text = message.get("role"), _read_content(message, place)
        if role in LEADING:
            if number > 0:
                raise _refuse(f"{place}.role", f"a {role} message can only be the first message; put its text there")
            system = text or None
            continue
        if not isinstance(role, str) or role not in SPEAKERS:
            raise _refuse(f"{place}.role", f"found {role!r:.40}, wanted user or assistant")
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
        raise _refuse(f"{place}.content", f"found {content!r:.40}, wanted a text")
    return plain_text(content)


def _refuse(key: str, what: str) -> ApiError:
    return ApiError(400, f"{key}: {what}", param=key)
