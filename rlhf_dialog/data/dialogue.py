"""A dialogue as text: its turns, its rendering to a prompt, and the way back from generated text. No tensors here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlhf_dialog.json_files import map_leaves

POLICY, USER = "policy", "user"
CHAT_TEMPLATE = "chat_template"  # the `turn_separator` that asks for the tokenizer's template
AUTO = "auto"  # the `turn_separator` that leaves it to the model
BLANK_LINE = "\n\n"  # between messages of one speaker, which are one turn
SEPARATOR = "<EOU>"  # that of a model without a template


@dataclass(frozen=True)
class Turn:
    """What one speaker said: `policy` or `user`."""

    speaker: str
    text: str


class ToolText(str):
    """The text of a turn with calls of tools or what they answered, and its `messages` as a chat template takes them."""

    messages: list[dict[str, Any]]

    def __new__(cls, text: str, messages: Sequence[dict[str, Any]] = ()) -> "ToolText":
        made = super().__new__(cls, text)
        made.messages = list(messages)
        return made


class SystemText(str):
    """The system message of a dialogue with `tools`, for the chat template; the text is empty where it has none."""

    tools: list[Any]

    def __new__(cls, text: str, tools: Sequence[Any] = ()) -> "SystemText":
        made = super().__new__(cls, text)
        made.tools = list(tools)
        return made

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True and self.tools == tools_of(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((str(self), repr(self.tools)))


def tools_of(system: object) -> list[Any]:
    """The tools of a dialogue with this system message."""
    return system.tools if isinstance(system, SystemText) else []


class _Unsaid(str):
    """The empty text of a policy that has said nothing yet; one that said nothing has the plain empty text."""


@dataclass
class Dialogue:
    """One episode: what was said, what the policy answered, and what a person answered there.

    >>> dialogue = Dialogue(
    ...     prompt_turns=["Do you have a table for two ?", "Yes . Would you like to sit outside ?"],
    ...     response="Inside , please .",
    ...     reference="No , inside please . It is cold .",
    ...     act=3,
    ...     meta={"split": "train", "index": 7, "dialogue": 2, "group": 0},
    ... )
    >>> dialogue.turns
    [Turn(speaker='policy', text='Inside , please .')]

    It may go on: `response` is always the policy's last turn, `turns` is everything said after the prompt.

    >>> dialogue = dialogue.with_user_turn("Smoking or not ?").with_reply("Not , please .").with_user_turn("This way .")
    >>> dialogue.response
    'Not , please .'
    >>> [turn.text for turn in dialogue.turns]
    ['Inside , please .', 'Smoking or not ?', 'Not , please .', 'This way .']
    """

    prompt_turns: list[str]  # the last `context_size` turns, oldest first, stripped
    response: str = _Unsaid()  # what the policy wrote last, cut at the separator, stripped; empty before the rollout
    reference: str | None = None  # the turn that followed in the data
    act: int | None = None  # the reference's act: 1 inform, 2 question, 3 directive, 4 commissive
    truncated: bool = False  # a response was cut at `max_new_tokens`, or the dialogue before its end
    # everything else in the data, and what `origin` has, where the data has no column of that name
    meta: dict[str, Any] = field(default_factory=dict)
    references: list[str] = field(default_factory=list)  # all acceptable ones, `reference` first; empty without any
    # between the prompt and `response`; empty in a single-turn episode
    earlier: list[Turn] = field(default_factory=list)
    later: list[Turn] = field(default_factory=list)  # after `response`
    system: str | None = None  # the system message of the data, which is no turn; a SystemText where it has tools
    roles: list[str] | None = None  # of each prompt turn, `user` or `assistant`; None where the data has none
    # "split"; "index" of the prompt; "dialogue", the number in the split of the record that it comes from; and in a rollout
    # "group", the number of the prompt, the same for all responses to it on all ranks
    origin: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def from_origin(self, **origin: Any) -> "Dialogue":
        """The dialogue with these parts of `origin`, also in `meta` where the data has no column of that name."""
        known = {name: value for name, value in self.meta.items() if name not in self.origin}
        return replace(self, meta=self.meta | origin | known, origin=self.origin | origin)

    def origin_of(self, name: str, default: Any = None) -> Any:
        """A part of `origin`; of a dialogue that was made without one, what `meta` says."""
        return self.origin.get(name, self.meta.get(name, default))

    @property
    def turns(self) -> list[Turn]:
        """Everything said after the prompt, oldest first; empty before the first response."""
        if isinstance(self.response, _Unsaid) and not (self.earlier or self.later):
            return []
        return [*self.earlier, Turn(POLICY, self.response), *self.later]

    @property
    def turns_before(self) -> list[str]:
        """Everything said before `response`, oldest first."""
        return [*self.prompt_turns, *(turn.text for turn in self.earlier)]

    def with_reply(self, response: str, truncated: bool = False) -> "Dialogue":
        """The dialogue with one more turn of the policy; a truncated dialogue remains truncated."""
        truncated = truncated or self.truncated
        return replace(self, response=response, truncated=truncated, earlier=self.turns, later=[])

    def with_user_turn(self, text: str) -> "Dialogue":
        """The dialogue with one more turn of the user."""
        return replace(self, later=[*self.later, Turn(USER, text)])


def render_prompt(turns: Sequence[str], separator: str) -> str:
    """The turns as one text, each followed by the separator: `a <EOU> b <EOU>`."""
    return f" {separator} ".join(turns) + f" {separator}"


def render_reply(turn: str) -> str:
    """The text that follows a prompt: a space, then the turn."""
    return " " + turn


def render_target(turn: str, separator: str) -> str:
    """The text that supervised fine-tuning teaches after a prompt (the end-of-text token is added as an id)."""
    return f"{render_reply(turn)} {separator}"


def fit_newest(
    turns: Sequence[str], encode: Callable[[Sequence[str]], list[int]], max_length: int, head: int = 0
) -> list[int]:
    """The ids of as many of the newest turns as fit into `max_length`; the first `head` ids are never cut off."""
    for start in range(len(turns)):
        ids = encode(turns[start:])
        if len(ids) <= max_length:
            return ids
    head = min(head, max_length)
    return ids[:head] + ids[len(ids) - max_length + head :]


def remove_marks(text: str, marks: Sequence[str]) -> str:
    """`text` with a space in place of each of the `marks`, in their order, and white space collapsed; without one, as it is.

    (`agent_template.WORDS` says the same in the language of chat templates.)
    """
    if isinstance(text, ToolText):
        messages = map_leaves(text.messages, lambda one: remove_marks(one, marks) if isinstance(one, str) else one)
        return ToolText(remove_marks(str(text), marks), messages)
    while any(mark in text for mark in marks):
        replaced = text
        for mark in marks:
            replaced = replaced.replace(mark, " ")
        replaced = " ".join(replaced.split())
        if replaced == text:  # the mark is a space
            break
        text = replaced
    return text


def cut_at_separator(text: str, separator: str) -> str:
    """The text that rewards and metrics see: the part before the first separator, stripped."""
    return text.split(separator, 1)[0].strip()
