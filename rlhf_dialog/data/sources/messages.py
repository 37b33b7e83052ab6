"""The items of one dialogue -> its turns, and who replies: strings, objects with a text, messages with a role, calls of tools."""

import json
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from rlhf_dialog.data.dialogue import BLANK_LINE, POLICY, USER, ToolText
from rlhf_dialog.data.row_counts import LeftOut, is_empty, is_null
from rlhf_dialog.data.sources.record import (
    NAMES,
    RECIPES,
    DialogueRecord,
    checked_text,
    find,
    first_filled,
    kind,
    read_flag,
)
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.json_files import map_leaves

SYSTEM_ROLES = ("system", "developer")
USER_ROLES = ("user", "human", "prompter")
ASSISTANT_ROLES = ("assistant", "gpt", "bot", "model", "chatbot")
SPOKEN_ROLES = (*SYSTEM_ROLES, *USER_ROLES, *ASSISTANT_ROLES)
CALL_ROLES = ("function_call", "tool_call", "tool_calls")  # whose text is JSON: {"name": ..., "arguments": {...}}
TOOL_ROLES = (
    *("tool", "function", "ipython", "observation", "environment"),
    *("tool_response", "tool_result", "tool_output", "function_response", "function_result", "function_output"),
)
SPEAKER_OF = dict.fromkeys(ASSISTANT_ROLES, POLICY) | dict.fromkeys((*USER_ROLES, TOOL_ROLES[0]), USER)
LEARN_KEYS = ("weight", "train", "loss", "trainable")  # of a message: 0 or false where it is no reply to learn
MOST_ROLES = 256  # that are kept as they are read
TOOL_CALLS = ("tool_calls", "function_call")
TOOL_USERS = {*CALL_ROLES, *TOOL_ROLES}
OF_TOOLS = (*TOOL_CALLS, "tool_call_id", "name")  # the other keys of messages of tools


@dataclass
class Messages:
    """The turns of one dialogue, not checked yet, and its system messages, which are no turns."""

    turns: list[Any] = field(default_factory=list)
    roles: list[str | None] = field(default_factory=list)  # of each turn, in lower case
    system: list[tuple[int, str]] = field(default_factory=list)  # the number of turns before it, and its text
    learned: list[bool] = field(default_factory=list)  # of each turn, whether its LEARN_KEYS let it be a reply to learn
    tools: list[Any] = field(default_factory=list)  # that the assistant may call

    def then(self, others: "Messages") -> "Messages":
        """These messages and the others behind them; a system message that says the same again counts once."""
        said = {text for _, text in self.system}
        more = [(len(self.turns) + place, text) for place, text in others.system if text not in said]
        turns, learned = self.turns + others.turns, self.learned + others.learned
        return Messages(turns, self.roles + others.roles, self.system + more, learned, self.tools)


def items_in(value: Any, what: str, where: str, wanted: str) -> list[Any]:
    """The items of a cell: one text, one message, or a list. Raises UserError that names what was `wanted` for anything else."""
    if isinstance(value, str | dict):
        return [value]
    if not isinstance(value, list):
        raise UserError(f"{where}: '{what}' holds {kind(value)}, wanted {wanted}")
    return [*split_pairs(value)]


def split_pairs(items: Sequence[Any]) -> Iterator[Any]:
    """The items, with two messages in place of a pair: of [question, answer], or of {"user": ..., "assistant": ...}."""
    for item in items:
        sides = (
            dict(zip(("user", "assistant"), item, strict=False)) if isinstance(item, list) and len(item) == 2 else item
        )
        roles = [key for key in sides if key.lower() in SPOKEN_ROLES] if isinstance(sides, dict) else []
        is_pair = len(roles) > 1 and find(sides, "utterance") is None
        yield from ({"role": role, "content": sides[role]} for role in roles) if is_pair else [item]


def split_messages(items: Sequence[Any], where: str) -> Messages:
    """Turns and system messages. Raises UserError for an object without a text, LeftOut for one with an image."""
    messages = Messages()
    for number, item in enumerate(items, 1):
        role = read_role(item)
        if role in SYSTEM_ROLES and is_system(item):
            text = checked_text(_text(item, number, where), f"system message {number}", where)
            messages.system.append((len(messages.turns), text))
            continue
        turn, role = _tool_turn(item, number, where) if uses_tools(item) else (_text(item, number, where), role)
        messages.turns.append(turn)
        messages.roles.append(role)
        messages.learned.append(is_learned(item))
    return messages


def read_role(item: Any) -> str | None:
    """The role of a message in lower case, or the number of its speaker; None when the item is not a message with a role."""
    if not isinstance(item, dict):
        return None
    role = item.get(NAMES["role"][0])
    if role is None:
        role = item.get(find(item, "role") or "")
    return _plain(str(role)) if isinstance(role, str | int) else None


@lru_cache(maxsize=MOST_ROLES)
def _plain(role: str) -> str:
    return role.strip().lower()


@lru_cache(maxsize=MOST_ROLES)
def _with_underscores(role: str) -> str:
    return re.sub(r"[\s-]+", "_", role)


def is_learned(item: Any) -> bool:
    """Whether a message, or each of a list, may be a reply to learn: none of its LEARN_KEYS says 0 or false."""
    messages = [one for one in (item if isinstance(item, list) else [item]) if isinstance(one, dict)]
    return all(read_flag(message[key]) is not False for message in messages for key in LEARN_KEYS if key in message)


def are_messages(value: Any) -> bool:
    """Whether a value is a message, or a list of them, each with a known role and a text or calls of tools."""
    roles = (*SYSTEM_ROLES, *USER_ROLES, *ASSISTANT_ROLES, *CALL_ROLES, *TOOL_ROLES)
    items = value if isinstance(value, list) else [value]
    said = [one for one in items if isinstance(one, dict) and first_filled((*NAMES["utterance"], *TOOL_CALLS), one)]
    return items == said != [] and all(_tool_role(one) in roles for one in said)


def is_system(item: Any) -> bool:
    """Whether an item is a system message. (The speaker `system` of a dialogue is one who speaks.)"""
    return read_role(item) in SYSTEM_ROLES and any(isinstance(item.get(key), str) for key in NAMES["role"][:2])


def uses_tools(item: Any) -> bool:
    """Whether a message is a tool's, or calls one."""
    if not isinstance(item, dict):
        return False
    return _tool_role(item) in TOOL_USERS or any(item.get(key) for key in TOOL_CALLS if key in item)


def _tool_role(item: dict[str, Any]) -> str:
    return _with_underscores(read_role(item) or "")


def _tool_turn(item: dict[str, Any], number: int, where: str) -> tuple[ToolText, str]:
    """A call, or what a tool answered, with its role; as JSON where it is no text."""
    role = _tool_role(item)
    key = find(item, "utterance")
    content = item[key] if key else None
    if isinstance(content, list):
        content = _join_parts(content, number, where)
    if role in TOOL_ROLES:
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        more = {key: item[key] for key in ("name", "tool_call_id") if item.get(key)}
        return ToolText(text.strip(), [{"role": "tool", "content": text} | more]), "tool"
    calls = item.get("tool_calls") or item.get("function_call")
    if role in CALL_ROLES and not calls:
        calls, content = content, ""
    functions = [_function(call, number, where) for call in _parsed(calls, number, where)]
    message = {"role": "assistant", "content": content or "", "tool_calls": functions}
    texts = [content or "", *(json.dumps(one["function"], ensure_ascii=False) for one in functions)]
    return ToolText("\n".join(filter(None, texts)), [message]), "assistant"


def _function(call: Any, number: int, where: str) -> dict[str, Any]:
    """One call as chat templates take it: {"type": "function", "function": {"name": ..., "arguments": {...}}}."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise LeftOut(where, "tool messages", f": turn {number} calls {reprlib.repr(call)}, which has no name")
    arguments = function.get("arguments", function.get("parameters"))
    parsed = _parsed(arguments, number, where)[0] if isinstance(arguments, str) and arguments.strip() else arguments
    more = {"id": call["id"]} if function is not call and call.get("id") else {}
    return {"type": "function", "function": {"name": function["name"], "arguments": without_nulls(parsed or {})}} | more


def _parsed(value: Any, number: int, where: str) -> list[Any]:
    """The list in JSON that may be text already, or one item as a list."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise LeftOut(where, "tool messages", f": turn {number} calls {value!r:.60}, which is not JSON") from None
    return value if isinstance(value, list) else [value]


def without_nulls(value: Any) -> Any:
    """The value without keys that are null, with which parquet files fill what other rows have."""
    return map_leaves(value, lambda leaf: leaf, lambda _, one: not is_null(one))


def said_by_turns(items: list[Any], keys: Sequence[str]) -> list[Any] | None:
    """For turns that are objects, the value of each under one of `keys`, or None; None when no turn has a value."""
    if not any(key in item for item in items if isinstance(item, dict) for key in keys):
        return None
    turns = [item for item in items if not is_system(item)]
    named = [(item, first_filled(keys, item) if isinstance(item, dict) else None) for item in turns]
    values = [item[key] if key else None for item, key in named]
    return values if any(key for _, key in named) else None


def _text(item: Any, number: int, where: str) -> Any:
    if not isinstance(item, dict):
        return item
    key = find(item, "utterance")
    if key is None:
        wanted, there = " or ".join(NAMES["utterance"]), ", ".join(map(repr, list(item)[:9])) or "nothing"
        texts = [key for key, value in item.items() if isinstance(value, str)]
        kinds = ("turn.utterance",) if len(texts) < 2 else ("turn.user", "turn.assistant")
        named = ", ".join(f"{kind}: {key}" for kind, key in zip(kinds, texts, strict=False))
        hint = f"if these are its texts, set columns: {{{named}}}, or " if named else ""
        raise UserError(
            f"{where}: turn {number} is an object without a text; wanted {wanted}, found {there}; {hint}{RECIPES}"
        )
    return _join_parts(item[key], number, where) if isinstance(item[key], list) else item[key]


def _join_parts(parts: list[Any], number: int, where: str) -> str:
    """The parts of a message content (OpenAI format), joined by spaces. Raises LeftOut for a part that is no text."""
    for part in parts:
        shown = f"turn {number} has the part {reprlib.repr(part)}; only {{'type': 'text', 'text': '...'}} is read"
        if not isinstance(part, dict) or (part.get("type") == "text" and not isinstance(part.get("text"), str)):
            raise UserError(f"{where}: {shown}")
        if part.get("type") != "text":
            raise LeftOut(where, "images or other parts that are no text", f": {shown}")
    return " ".join(part["text"].strip() for part in parts)


def unused_keys(items: Iterable[Any], used: Iterable[str]) -> dict[str, Any]:
    """What the objects among `items` hold under keys that are not `used` and not those of messages."""
    known = {*NAMES["role"], *used}
    unused: dict[str, Any] = {}
    for item in items:
        text_key = find(item, "utterance") if isinstance(item, dict) else None
        if isinstance(item, dict) and any(key not in known and key != text_key for key in item):
            read = {text_key, *(OF_TOOLS if uses_tools(item) else ())}
            read |= {key for key in LEARN_KEYS if key in item and read_flag(item[key]) is not None}
            unused |= {key: value for key, value in item.items() if key not in known | read and not is_empty(value)}
    return unused


# -- who replies


@dataclass
class SpokenTurn:
    """One or more messages of one speaker in a row, joined by a blank line; the numbers of the first and the last of them."""

    text: str
    is_reply: bool
    first: int
    last: int


def read_speakers(roles: Sequence[str | None] | None, reply_roles: Sequence[str] = ()) -> list[str | None] | None:
    """Who says each turn: POLICY, or another name; None where the roles do not say who replies.

    They do where each is the user's or the assistant's, or where `reply_roles` names those who reply.
    """
    if roles is None:
        return None
    if reply_roles:
        return [POLICY if role in reply_roles else role for role in roles]
    speakers = [SPEAKER_OF.get(role or "") for role in roles]
    return None if None in speakers else list(speakers)


def join_turns(texts: Sequence[str], speakers: Sequence[str | None], others_are_one: bool = True) -> list[SpokenTurn]:
    """The turns of these messages. `others_are_one`: all who do not reply are one speaker."""
    turns: list[SpokenTurn] = []
    before: str | None = None
    for number, (text, speaker) in enumerate(zip(texts, speakers, strict=True)):
        name = USER if others_are_one and speaker != POLICY else speaker
        if turns and name == before:
            turns[-1].text = _join(turns[-1].text, text, "assistant" if name == POLICY else "user")
            turns[-1].last = number
        else:
            turns.append(SpokenTurn(text, name == POLICY, number, number))
        before = name
    return turns


def _join(first: str, second: str, role: str) -> str:
    """Two texts of one speaker; the messages of both where one of them has calls of tools."""
    text = BLANK_LINE.join([first, second])
    if not isinstance(first, ToolText) and not isinstance(second, ToolText):
        return text
    parts = [one.messages if isinstance(one, ToolText) else [{"role": role, "content": one}] for one in (first, second)]
    return ToolText(text, [message for some in parts for message in some])


def spoken_turns(
    record: DialogueRecord, reply_roles: Sequence[str] = (), others_are_one: bool = True
) -> list[SpokenTurn]:
    """The turns of a record. Where its roles do not say who replies, each message is a turn, and in a dialogue a reply."""
    speakers = read_speakers(record.roles, reply_roles)
    if speakers is None:
        return [SpokenTurn(text, not record.is_prompt, i, i) for i, text in enumerate(record.turns)]
    return join_turns(record.turns, speakers, others_are_one)


class RoleCounts:
    """Counts the roles of records, and the dialogues whose roles do not say who replies."""

    def __init__(self, reply_roles: Sequence[str]) -> None:
        self.reply_roles, self.num_records, self.num_unclear = reply_roles, 0, 0
        self.roles, self.unclear_roles = Counter[str](), set[str]()
        self.last: str | None = None  # unknown role at the end of an unclear dialogue

    def add(self, record: DialogueRecord) -> None:
        """Count one more record."""
        self.num_records += 1
        roles = [role for role in record.roles or () if role]
        self.roles.update(roles)
        if not record.is_prompt and read_speakers(record.roles, self.reply_roles) is None:
            self.num_unclear += 1
            self.unclear_roles.update(roles)
            if self.last is None and record.roles and record.roles[-1] not in (None, *SPEAKER_OF):
                self.last = record.roles[-1]

    def check(self, where: str) -> None:
        """Raises UserError when one of `reply_roles` is no role of the data."""
        for name in self.reply_roles:
            if name not in self.roles:
                present = ", ".join(role for role, _ in self.roles.most_common(9)) or "none"
                raise UserError(
                    f"reply_roles: nobody in {where} has the role '{name}'{nearest(name, self.roles) or '.'} The roles are: "
                    f"{present}"
                )

    def describe(self) -> str:
        """What a log says of dialogues whose roles do not say who replies; empty where there is none."""
        if not self.num_unclear:
            return ""
        unknown = sorted(self.unclear_roles - SPEAKER_OF.keys())
        why = f"roles besides user and assistant ({', '.join(unknown[:9])})" if unknown else "no roles"
        line = f"{self.num_unclear} of {self.num_records} dialogues have {why}, so each turn that follows another one is a reply"
        return f"{line}; name who replies, such as reply_roles: [{self.last or unknown[0]}]" if unknown else line
