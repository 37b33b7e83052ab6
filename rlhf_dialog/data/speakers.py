"""Who replies in a dialogue: messages of one speaker joined to turns, and which of these are the policy's."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_dialog.data.dialogue import POLICY, USER, ToolText
from rlhf_dialog.data.sources import DialogueRecord
from rlhf_dialog.data.sources.messages import ASSISTANT_ROLES, TOOL_ROLES, USER_ROLES
from rlhf_dialog.errors import UserError, nearest

BLANK_LINE = "\n\n"
SPEAKER_OF = dict.fromkeys(ASSISTANT_ROLES, POLICY) | dict.fromkeys((*USER_ROLES, TOOL_ROLES[0]), USER)
KNOWN_ROLES = (*ASSISTANT_ROLES, *USER_ROLES, TOOL_ROLES[0])


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
            if self.last is None and record.roles and record.roles[-1] not in (None, *KNOWN_ROLES):
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
        unknown = sorted(self.unclear_roles - {*KNOWN_ROLES})
        why = f"roles besides user and assistant ({', '.join(unknown[:9])})" if unknown else "no roles"
        line = f"{self.num_unclear} of {self.num_records} dialogues have {why}, so each turn that follows another one is a reply"
        return f"{line}; name who replies, such as reply_roles: [{self.last or unknown[0]}]" if unknown else line
