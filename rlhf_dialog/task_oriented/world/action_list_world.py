"""A list of actions that somebody wrote, in JSON: what the system can say, and when. And the dialogues in words whose system
chooses from it, and whose user rewards it."""

import hashlib
import json
import math
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from rlhf_dialog.config.registry import Registry
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.json_files import damage_as_user_error, read_json
from rlhf_dialog.task_oriented.world.users.teacher import Teacher, sum_rewards
from rlhf_dialog.user_code import as_user_error

Observation = NDArray[np.float32]
VOWEL_SIGNS = "".join(filter(lambda one: unicodedata.category(one)[0] == "M", map(chr, range(0x300, 0x10000))))
ALONE = "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff"  # kana and Chinese characters
LETTER = rf"(?:(?![{ALONE}])[\w{VOWEL_SIGNS}])"
WORD = re.compile(rf"[{ALONE}]|{LETTER}+(?:['’]{LETTER}+)*")
# functions (turns, **args) -> a vector, always of the same size
StateFactory = Registry("state")
Turn = tuple[str, str]  # an action of the system (an empty text before the first one), and what the user said then


@StateFactory.register("last_turns")
def last_turns(turns: Sequence[Turn], size: int = 256, before: float = 0.2, action: float = 0.2) -> list[float]:
    """The words of the user's last turn, of the one before it with the weight `before`, and the last action.

    A word or action has the place CRC-32 modulo `size`. Each of the three parts has the length 1, times its weight.
    """
    vector = [0.0] * size
    (taken, user_turn), (_, earlier) = ([("", ""), ("", ""), *turns])[:-3:-1]
    parts = (
        (split_words(user_turn), 1.0),
        ([f"before {word}" for word in split_words(earlier)], before),
        ([f"action {taken}"], action),
    )
    for names, weight in parts:
        counts = Counter(zlib.crc32(name.encode()) % size for name in names)
        length = math.sqrt(sum(number**2 for number in counts.values()))
        for place, number in counts.items():
            vector[place] += weight * number / length
    return vector


class StateFunction:
    """A registered function of the turns, called with `args`; `size` is that of its vectors.

    Raises UserError for an unknown name or wrong arguments, and for a function that raises, or returns something else than finite
    numbers of always the same size.
    """

    def __init__(self, name: str, args: dict[str, Any]):
        if problem := StateFactory.problem(name, {"turns": [], **args}):
            raise UserError(f"domain.state: {problem}")
        self.name = name
        self.function: Callable[[Sequence[Turn]], Any] = partial(StateFactory.classes[name], **args)
        self.size = 0
        self.size = len(self([]))

    def __call__(self, turns: Sequence[Turn]) -> NDArray[np.float32]:
        """The vector (D,) after these turns, the oldest one first."""
        with as_user_error(f"domain.state {self.name}:"):
            vector = np.array(self.function(list(turns)), dtype=np.float32)
        if vector.ndim != 1 or not len(vector) or not np.isfinite(vector).all() or self.size not in (0, len(vector)):
            raise UserError(
                f"domain.state {self.name}: returned {vector.tolist()!r:.100} for {turns!r:.100}; return a list of "
                f"{self.size or ''} finite numbers, always as many as for an empty dialogue"
            )
        return vector


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
        self.actions = []
        for number, entry in enumerate(raw, 1):
            with damage_as_user_error(f"{where}, action {number}: "):
                self.actions.append(Action.model_validate(entry))
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


class ActionListWorld:
    """One step is one action and what the teacher says then; it is worth what the teacher gave for it.

    Observations are states of the turns so far. The dialogue ends with an action that ends it, by the teacher, or after
    `max_turns` actions. `info` at the end is that of `PersonWorld`; success is a sum of rewards above 0.
    """

    def __init__(self, actions: ActionList, teacher: Teacher, state: StateFunction, max_turns: int):
        self.actions, self.teacher, self.state, self.max_turns = actions, teacher, state, max_turns
        self.names = actions.names
        self.observation_space = spaces.Box(-np.inf, np.inf, (state.size,), np.float32)
        self.action_space = spaces.Discrete(len(self.names))

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
        """Begin a dialogue with the teacher's first words; nothing is random."""
        self.rewards: list[float | None] = []
        self.turns: list[Turn] = [("", self.teacher.begin("", "").text)]
        return self.state(self.turns), self._info()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Say the action's sentence, and hear the teacher."""
        if self.teacher.left:
            return self.state(self.turns), 0.0, False, True, self._finish()
        chosen = self.actions.actions[int(action)]
        turn = self.teacher.answer(chosen.sentence, last=chosen.ends)
        self.rewards.append(turn.reward)
        self.turns.append((chosen.name, turn.text))
        terminated = not self.teacher.left and (chosen.ends or turn.ends)
        truncated = not terminated and (self.teacher.left or len(self.turns) > self.max_turns)
        info = self._finish() if terminated or truncated else self._info()
        return self.state(self.turns), sum_rewards(self.rewards[len(self.turns) - 2 :]), terminated, truncated, info

    def _info(self) -> dict[str, Any]:
        taken = [name for name, _ in self.turns[1:]]
        return {"action_mask": np.array(self.actions.mask(taken, self.turns[-1][1]))}

    def _finish(self) -> dict[str, Any]:
        """Ask the teacher for a last reward where each answer had none; the `info` of the end."""
        left = self.teacher.left
        if not (left or self.teacher.each_answer):
            self.rewards.append(self.teacher.judge(""))
        info = {"rewards": self.rewards, "left": left, "success": sum_rewards(self.rewards) > 0}
        return self._info() | info | {"turns": self.turns}
