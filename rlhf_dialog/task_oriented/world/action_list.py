"""A list of actions that somebody wrote: what the system can say, and when. JSON, checked when it is read."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.json_files import read_json

VOWEL_SIGNS = "".join(filter(lambda one: unicodedata.category(one)[0] == "M", map(chr, range(0x300, 0x10000))))
ALONE = "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff"  # kana and Chinese characters
LETTER = rf"(?:(?![{ALONE}])[\w{VOWEL_SIGNS}])"
WORD = re.compile(rf"[{ALONE}]|{LETTER}+(?:['’]{LETTER}+)*")


class Action(BaseModel):
    """One thing that the system can say; it is allowed where all its conditions hold.

    >>> Action(name="find", sentence="Who wrote it?", after=["hello"], words=["book", "looking for"])
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = Field(min_length=1, description="of the action, once in the list")
    sentence: str = Field(min_length=1, description="what the system says")
    first: bool | None = Field(
        None, description="true: only as the first answer of a dialogue; false: not as the first"
    )
    after: list[str] = Field([], description="one of these actions was taken earlier in the dialogue")
    not_after: list[str] = Field([], description="none of these actions was taken earlier in the dialogue")
    words: list[str] = Field([], description="the user's last turn has one of these words, or sequences of words")
    ends: bool = Field(False, description="the dialogue ends with this action")

    def is_allowed(self, taken: Sequence[str], heard: str) -> bool:
        """Whether the conditions hold after the actions `taken` in the dialogue, when `heard` is the user's last turn."""
        padded_words = f" {' '.join(split_words(heard))} "
        return (
            (self.first is None or self.first == (not taken))
            and (not self.after or any(name in taken for name in self.after))
            and not any(name in taken for name in self.not_after)
            and (not self.words or any(f" {' '.join(split_words(phrase))} " in padded_words for phrase in self.words))
        )


class ActionList:
    """The actions in their order. Raises UserError, with `where`, for a list that cannot be used."""

    def __init__(self, raw: Any, where: str):
        if not isinstance(raw, list) or not raw:
            raise UserError(f'{where}: is not a list of actions; write [{{"name": ..., "sentence": ...}}, ...]')
        self.actions = [_action(entry, f"{where}, action {number}") for number, entry in enumerate(raw, 1)]
        self.names = [action.name for action in self.actions]
        for name in self.names:
            if self.names.count(name) > 1:
                raise UserError(f"{where}: two actions have the name {name!r}; give each a name of its own")
        for action in self.actions:
            for name in (*action.after, *action.not_after):
                if name not in self.names:
                    advice = nearest(name, self.names) or "; name one of the list"
                    raise UserError(f"{where}, action {action.name!r}: there is no action {name!r}{advice}")
            if wordless := next((entry for entry in action.words if not split_words(entry)), None):
                raise UserError(
                    f"{where}, action {action.name!r}: words: {wordless!r} has no letter or digit; name a word"
                )
        if all(a.first is not None or a.after or a.not_after or a.words for a in self.actions):
            raise UserError(
                f"{where}: every action has a condition (first, after, not_after, words); add one without, such as a sentence "
                "that asks again, so that there is always something to say"
            )

    @property
    def hash(self) -> str:
        """Of the names in their order: sentences and conditions may be changed while a policy learns."""
        return hashlib.sha256(json.dumps(self.names).encode()).hexdigest()

    def mask(self, taken: Sequence[str], heard: str) -> list[bool]:
        """Which actions are allowed, see `Action.is_allowed`."""
        return [action.is_allowed(taken, heard) for action in self.actions]


def read_actions(path: Path) -> ActionList:
    """The list in a JSON file. Raises UserError when it cannot be read or used."""
    return ActionList(read_json(path, f"{path}: cannot be read as JSON: ", encoding="utf-8-sig"), str(path))


def split_words(text: str) -> list[str]:
    """Lower case, without punctuation. Chinese and Japanese are written without blanks; there each character is a word.

    >>> split_words("What's new, then?")
    ["what's", 'new', 'then']
    """
    return WORD.findall(unicodedata.normalize("NFC", text.lower()))


def _action(raw: Any, where: str) -> Action:
    try:
        return Action.model_validate(raw)
    except ValidationError as error:
        (first, *_) = error.errors()
        key = ".".join(map(str, first["loc"])) or "it"
        if first["type"] == "extra_forbidden":
            keys = list(Action.model_fields)
            raise UserError(
                f"{where}: unknown key {key!r}{nearest(key, keys) or '; known: ' + ', '.join(keys)}"
            ) from None
        raise UserError(f"{where}: {key}: {first['msg']}") from None
