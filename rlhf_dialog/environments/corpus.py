"""A user whose turns are those of a real dialogue, and which therefore does not hear what the policy says."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any

from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.data.dialogue import CHAT_TEMPLATE, Dialogue
from rlhf_dialog.environments.base import Step
from rlhf_dialog.errors import UserError

if TYPE_CHECKING:
    from rlhf_dialog.data.sources import DialogueRecord


@EnvironmentFactory.register("corpus")
class CorpusUser:
    """One episode is one dialogue of the data: the policy takes the turns of the assistant, and the user ends with the data.

    Where the roles of the data do not say who replies, the policy is the second speaker.

    data_path: any data source (docs/DATA.md), or dialogues that were read already
    split: train, validation or test
    columns: the columns that hold what, where their names are not built in: {messages: talk}
    max_turns: replies after which a longer dialogue is cut off (`truncated`); None: all of it

    The dialogues of one seed come in an order of their own; each comes once before any comes again. Data that consists of
    prompts gives episodes of one reply. `info` has `dialogue` (the number in this order), `record` (the number in the
    data), and `reference` and `act`: what was replied in the data to the user's newest turn, None at the end. `info["prompt"]`
    has the last reply of the dialogue as its reference, because a reward reads the policy's last reply. Every reward is 0.

    >>> from rlhf_dialog.data.sources import DialogueRecord
    >>> user = CorpusUser([DialogueRecord(["Is it far ?", "Two streets .", "Then I will walk .", "Goodbye ."])])
    >>> text, info = user.reset(seed=7)
    >>> text, info["reference"], info["prompt"].reference
    ('Is it far ?', 'Two streets .', 'Goodbye .')
    >>> user.step("No .")
    ('Then I will walk .', 0.0, False, False, {'dialogue': 0, 'record': 0, 'reference': 'Goodbye .', 'act': None})
    >>> user.step("So long !")[:4]
    ('', 0.0, True, False)
    """

    def __init__(
        self,
        data_path: "str | Sequence[DialogueRecord]",
        split: str = "train",
        max_turns: int | None = None,
        columns: dict[str, str] | None = None,
    ):
        if max_turns is not None and max_turns < 1:
            raise UserError(f"max_turns is {max_turns}; give 1 or more, or none")
        self.split, self.max_turns = split, max_turns
        self.records = (
            _read(data_path, split, tuple((columns or {}).items())) if isinstance(data_path, str) else tuple(data_path)
        )
        self.usable = [number for number, record in enumerate(self.records) if _replies(record)]
        if not self.usable:
            raise UserError(
                f"{data_path if isinstance(data_path, str) else 'data_path'}, {split}: of {len(self.records)} dialogues none "
                "has a reply to the user's first turn; use other data"
            )
        self._seed: int | None = None
        self.dialogue = -1

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin a dialogue: with `seed` the first one in its order, without it the next; `options["dialogue"]` is a number."""
        if seed is not None or self._seed is None:
            self._seed, self.dialogue = SystemRandom().randrange(2**31) if seed is None else seed, -1
        self.dialogue = int((options or {}).get("dialogue", self.dialogue + 1))
        epoch, place = divmod(self.dialogue, len(self.usable))
        self.record = self.usable[_order(self._seed, epoch, len(self.usable))[place]]
        record = self.records[self.record]
        prompts = _prompts(record)
        self.replies = _replies(record)[: self.max_turns]
        self.turns = [prompt.prompt_turns[-1] for prompt in prompts[1:]]
        self.spoken = 0
        references, act = self.replies[-1]
        prompt = replace(prompts[0], reference=references[0], act=act, meta=record.meta, references=references)
        prompt = prompt.from_origin(split=self.split, dialogue=self.record)
        return prompt.prompt_turns[-1], {"prompt": prompt} | self._info()

    def step(self, reply: str) -> Step:
        """The next turn of the data, no matter what the reply is."""
        self.spoken += 1
        text = self.turns[self.spoken - 1] if self.spoken <= len(self.turns) else ""
        ended = self.spoken == len(self.replies)
        whole = len(self.replies) == len(_replies(self.records[self.record]))
        return text, 0.0, ended and whole, ended and not whole, self._info()

    def _info(self) -> dict[str, Any]:
        known = self.spoken < len(self.replies)
        references, act = self.replies[self.spoken] if known else ([None], None)
        return {"dialogue": self.dialogue, "record": self.record, "reference": references[0], "act": act}


@lru_cache(maxsize=4)
def _read(data_path: str, split: str, columns: tuple[tuple[str, str], ...]) -> "tuple[DialogueRecord, ...]":
    """The dialogues; several environments share them."""
    from rlhf_dialog.data.sources import load_records

    return tuple(load_records(data_path, split, dict(columns)))


def _prompts(record: "DialogueRecord") -> "list[Dialogue]":
    """What the policy answers in turn. Where the roles do not say who replies, the second speaker does."""
    from rlhf_dialog.data.prompts import PromptRules, prompts_of
    from rlhf_dialog.data.sources.messages import read_speakers

    prompts = prompts_of(record, PromptRules(len(record.turns), turn_separator=CHAT_TEMPLATE, unanswered=True))
    if record.is_prompt or read_speakers(record.roles) is not None:
        return prompts
    last = [Dialogue(record.turns)] if len(record.turns) % 2 else []  # the user ends
    return [*prompts[::2], *last]


def _replies(record: "DialogueRecord") -> list[tuple[list[Any], int | None]]:
    """For each reply in the data all its versions, None where it is not to be learned, and its act; the last one is."""
    versions: list[tuple[list[Any], int | None]] = [
        (prompt.references or [None], prompt.act) for prompt in _prompts(record)
    ]
    while versions and versions[-1][0] == [None]:
        versions.pop()
    return versions


@lru_cache(maxsize=16)
def _order(seed: int | None, epoch: int, count: int) -> list[int]:
    order = list(range(count))
    Random(f"{seed}/{epoch}/corpus").shuffle(order)
    return order
