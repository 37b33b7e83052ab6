"""Dialogues of a data set -> prompts with references and acts.

Nothing of the data stays in memory but an index (`Prompts`): the first pass over a split counts, checks and hashes.
"""

import hashlib
import json
import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.data.dialogue import AUTO, BLANK_LINE, CHAT_TEMPLATE, Dialogue, SystemText, remove_marks, tools_of
from rlhf_dialog.data.overlap import is_repeat, long_utterances, utterance_holders
from rlhf_dialog.data.sources import SPLITS, DialogueRecord, Source, load_records
from rlhf_dialog.data.sources.columns import Columns, naming_columns
from rlhf_dialog.data.sources.messages import RoleCounts, SpokenTurn, read_speakers, spoken_turns
from rlhf_dialog.data.sources.record import find
from rlhf_dialog.data.sources.rows import Records
from rlhf_dialog.data.sources.splits import SplitNames
from rlhf_dialog.errors import UserError

logger = logging.getLogger(__name__)
Array = NDArray[Any]
NO_REFERENCE, NO_ACT, TAGGED, TOOLS, SYSTEM = (1 << bit for bit in range(5))  # flags of a prompt
FLAG_BITS, PLACE_BITS = 5, 24
LACKS = {"reference": NO_REFERENCE, "act": NO_ACT}
TAGS = "<["  # one of them is in nearly every special token, and in few texts


@dataclass(frozen=True)
class PromptRules:
    """How records become prompts. `from_keys` reads the rules from the keys of a configuration."""

    context_size: int = 5
    min_context_size: int = 1
    drop_overlap: bool = False  # leave out training dialogues that nearly repeat one of validation or test
    turn_separator: str | None = "<EOU>"  # a space replaces it in the texts; None: nothing is replaced
    reply_roles: tuple[str, ...] = ()  # who replies; empty: the assistant
    columns: Columns = field(default_factory=dict)  # the columns that hold what, as for `load_records`
    split: SplitNames = field(default_factory=dict)  # what the data calls its splits, as for `load_records`
    # also prompts without a reference: of dialogues that end with the user, and of replies that the data says not to learn
    unanswered: bool = False

    def __post_init__(self) -> None:
        if self.turn_separator == AUTO:
            raise ValueError(
                "turn_separator: auto must be settled (models.chat_agent.settle_separator) before data is read"
            )

    @classmethod
    def from_keys(cls, keys: Any, **others: Any) -> "PromptRules":
        """The rules of a configuration, with `others` in their place; defaults for the keys that it does not have."""
        rules = {one.name: value for one in fields(cls) if (value := getattr(keys, one.name, None)) is not None}
        if hasattr(keys, "env"):
            rules |= {"columns": keys.env.args.columns, "split": keys.env.args.split}
        return cls(**rules | {"reply_roles": tuple(rules.get("reply_roles", ()))} | others)

    def load(self, data_path: str, split: str, needs: Sequence[str] = ()) -> "Prompts":
        """The prompts of one split, see `prompts_of`. A warning counts the texts that hold the separator.

        Dialogues in which tools are called are read for a chat template (`keep_writable`), else left out. So are prompts whose
        reply is not to be learned, where the reward `needs` something of it.

        Raises UserError when the data cannot be read or gives no prompt, MissingSplit when it has no such split.
        """
        where = f"{data_path}, {split}"
        source = Source(data_path, split, self.columns, self.split)
        holders = self._holders(data_path) if self.drop_overlap and split == "train" else None
        index, roles, overlap = PromptIndex(self, needs), RoleCounts(self.reply_roles), 0
        with naming_columns(self.columns):
            records = Records(source.rows, source.where, self.turn_separator == CHAT_TEMPLATE)
            for number, (key, record) in enumerate(records.read()):
                roles.add(record)
                if holders is not None and is_repeat(long_utterances(record), holders):
                    overlap += 1
                else:
                    index.add(number, key, record)
        roles.check(where)
        if holders is not None:
            text = "drop_overlap: left out %d of %d train dialogues that nearly repeat one of validation or test"
            logger.info(text, overlap, roles.num_records)
        index.report(where, roles, overlap)
        columns = index.columns(roles.num_records)
        return Prompts(source, records, split, self, columns, index.facts)

    def read(self, record: DialogueRecord) -> list[Dialogue]:
        """The prompts of one record, see `prompts_of`, with a space in place of the separator."""
        return prompts_of(_without_separator(record, self.turn_separator)[0], self)

    def _holders(self, data_path: str) -> dict[str, list[int]]:
        """Who holds each long utterance of the held-out splits; raises when these cannot be read."""
        try:
            parts = [load_records(data_path, split, self.columns, self.split, quiet=True) for split in SPLITS[1:]]
        except UserError as error:
            raise UserError(
                f"drop_overlap: needs the validation and test splits; turn it off, or fix this: {error}"
            ) from error
        return utterance_holders(long_utterances(record) for part in parts for record in part)


class PromptFacts:
    """What one pass over prompts finds: their number, a hash of all that a model or a reward reads of them but `meta`, and the
    system message that all of them have, None where they differ."""

    def __init__(self, prompts: Iterable[Dialogue] = ()) -> None:
        self.num_prompts, self.hash = 0, hashlib.sha256()
        self.system: str | None = None
        for prompt in prompts:
            self.add(prompt)

    def add(self, prompt: Dialogue) -> None:
        """Add one more prompt."""
        system = [] if prompt.system is None else [prompt.system]
        row = [prompt.prompt_turns, prompt.reference, prompt.references, prompt.act, *system, *tools_of(prompt.system)]
        self.hash.update(json.dumps(row).encode() + b"\n")
        if not self.num_prompts or self.system != prompt.system:
            self.system = None if self.num_prompts else prompt.system
        self.num_prompts += 1

    @property
    def fingerprint(self) -> str:
        return f"{self.num_prompts} prompts, {self.hash.hexdigest()[:16]}"


class Prompts(Sequence[Dialogue]):
    """The prompts of one split, each made from its row when it is drawn; 16 bytes of each are in memory.

    `columns`: `places` (N,) uint64, the key of the record, the number among its prompts, and flags; `dialogues` (N,) and
    `numbers` (N,) uint32, which are in `Dialogue.origin`. A prompt raises UserError when its file has changed.
    """

    def __init__(
        self,
        source: Source,
        records: Records,
        split: str,
        rules: PromptRules,
        columns: tuple[Array, Array, Array],
        facts: PromptFacts | None = None,
    ):
        self.source, self.records, self.split, self.rules = source, records, split, rules
        self.places, self.dialogues, self.numbers = columns
        self._facts = None if facts is None else (facts.fingerprint, facts.system)

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, number: int) -> Dialogue: ...
    @overload
    def __getitem__(self, number: slice) -> list[Dialogue]: ...
    def __getitem__(self, number: int | slice) -> Dialogue | list[Dialogue]:
        if isinstance(number, slice):
            return [self[one] for one in range(len(self))[number]]
        key = int(self.places[number]) >> PLACE_BITS
        return self._one_of(self.rules.read(self.records.at(key)), number)

    def __iter__(self) -> Iterator[Dialogue]:
        keys, number = self.places >> np.uint64(PLACE_BITS), 0
        for key, record in self.records.read(quiet=True):
            found = self.rules.read(record) if number < len(keys) and keys[number] == key else []
            while number < len(keys) and keys[number] == key:
                yield self._one_of(found, number)
                number += 1

    def _one_of(self, prompts: Sequence[Dialogue], number: int) -> Dialogue:
        """Prompt `number`, which is one of those of its record."""
        position = (int(self.places[number]) >> FLAG_BITS) & (1 << PLACE_BITS - FLAG_BITS) - 1
        index, dialogue = int(self.numbers[number]), int(self.dialogues[number])
        return prompts[position].from_origin(split=self.split, index=index, dialogue=dialogue)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def select(self, kept: Array) -> "Prompts":
        """Those of which `kept` (N,) is True."""
        if kept.all():
            return self
        columns = (self.places[kept], self.dialogues[kept], self.numbers[kept])
        return Prompts(self.source, self.records, self.split, self.rules, columns)

    def flagged(self, flags: int) -> Array:
        """Whether each prompt (N,) may have one of these flags."""
        return (self.places & np.uint64(flags)) != 0

    @property
    def facts(self) -> tuple[str, str | None]:
        """The fingerprint and the system message of `PromptFacts`."""
        if self._facts is None:
            found = PromptFacts(self)
            self._facts = (found.fingerprint, found.system)
        return self._facts

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "records"} | {"ends": (self[0], self[-1])}

    def open(self, data_path: str) -> None:
        """Open a copy from another process, which is closed. Raises UserError when `data_path` does not hold the same prompts."""
        if "records" not in vars(self):
            self.source.open(data_path)
            self.records = Records(self.source.rows, self.source.where, self.rules.turn_separator == CHAT_TEMPLATE)
            if (self[0], self[-1]) != vars(self).pop("ends"):
                raise self.source.another()


class DialogueNumbers:
    """The number of each record's dialogue: its own, and for prompts of one dialogue that of the first of them."""

    def __init__(self) -> None:
        self.ids, self.named = array("q"), array("I")  # the prompts that have the id of a dialogue

    def add(self, number: int, record: DialogueRecord) -> None:
        """Add record `number`."""
        if record.is_prompt and (name := find(record.meta, "dialog_id")) is not None:
            self.ids.append(hash(repr(record.meta[name])))
            self.named.append(number)

    def first(self, num_records: int) -> Array:
        """(N,) uint32, for each record."""
        numbers, named = np.arange(num_records, dtype=np.uint32), np.frombuffer(self.named, np.uint32)
        _, start, inverse = np.unique(np.frombuffer(self.ids, np.int64), return_index=True, return_inverse=True)
        numbers[named] = named[start[inverse]]
        return numbers


class PromptIndex:
    """Finds where the prompts of records are, for `Prompts`, and counts what `report` says; records are added in order."""

    def __init__(self, rules: PromptRules, needs: Sequence[str]) -> None:
        self.rules, self.needs, self.facts = rules, needs, PromptFacts()
        self.places, self.dialogues, self.numbers = array("Q"), array("I"), array("I")
        self.rows = DialogueNumbers()
        self.num_prompts = self.num_separators = self.num_commas = self.num_ended = self.num_unlearned = 0
        self.longest, self.only_prompts = 0, False
        self.blank: int | None = None  # the first record with a text that is only the separator

    def add(self, number: int, key: int, record: DialogueRecord) -> None:
        """Add the prompts of record `number`."""
        rules = self.rules
        self.rows.add(number, record)
        record, num_separators = _without_separator(record, rules.turn_separator)
        texts = "\n".join(_texts(record))
        if num_separators:
            self.num_separators += num_separators
            if self.blank is None and not all(_texts(record)):
                self.blank = number
        if "_comma_" in texts:
            self.num_commas += sum("_comma_" in text for text in _texts(record))
        self.longest = max(self.longest, len(record.turns))
        if record.is_prompt:
            self.only_prompts = True
            self.num_ended += spoken_turns(record, rules.reply_roles)[-1].is_reply
        if record.learned:
            self.num_unlearned += _count_unlearned(record, rules)
        flags = TOOLS if record.tools or record.has_calls else 0
        if any(tag in texts or any(tag in text for _, text in record.system) for tag in TAGS):
            flags |= TAGGED
        prompts = prompts_of(record, rules)
        if len(prompts) > 1 << PLACE_BITS - FLAG_BITS:
            raise UserError(f"dialogue {number + 1} of the data has {len(prompts)} replies; divide it")
        for position, prompt in enumerate(prompts):
            if not (self.needs and prompt.meta.get("unanswered")):
                of_prompt = flags | (prompt.reference is None) * NO_REFERENCE | (prompt.act is None) * NO_ACT
                of_prompt |= bool(prompt.system) * SYSTEM
                self.places.append(key << PLACE_BITS | position << FLAG_BITS | of_prompt)
                self.dialogues.append(number)
                self.numbers.append(self.num_prompts)
                self.facts.add(prompt)
            self.num_prompts += 1

    def columns(self, num_records: int) -> tuple[Array, Array, Array]:
        """The columns of `Prompts`."""
        dialogues = self.rows.first(num_records)[np.frombuffer(self.dialogues, np.uint32)]
        return np.frombuffer(self.places, np.uint64), dialogues, np.frombuffer(self.numbers, np.uint32)

    def report(self, where: str, roles: RoleCounts, overlap: int) -> None:
        """Log what was counted, of records of which `overlap` were not added. Raises UserError where there is no prompt."""
        rules = self.rules
        if self.num_separators:
            line = "%s: %d turns or references hold the turn_separator '%s'; a space replaces it there"
            logger.warning(line, where, self.num_separators, rules.turn_separator)
        if self.blank is not None:
            raise UserError(
                f"{where}: dialogue {self.blank + 1} has a turn or reference that is only the turn_separator "
                f"'{rules.turn_separator}'; remove it"
            )
        if self.num_commas:
            text = "%s: %d turns or references hold '_comma_' in place of a comma; replace it"
            logger.warning(text, where, self.num_commas)
        if line := roles.describe():
            logger.log(logging.WARNING if "reply_roles" in line else logging.INFO, "%s: %s", where, line)
        if self.num_ended:
            text = "%s: %d of %d prompts end with the assistant and are left out"
            logger.warning(text, where, self.num_ended, roles.num_records)
        if self.num_unlearned:
            text = "%s: %d replies are not learned (weight, train, loss or trainable is 0 or false, or their label is false)"
            logger.warning(text, where, self.num_unlearned)
        if not self.num_prompts and self.num_unlearned:
            raise UserError(
                f"{where}: no prompts: no reply may be learned, {self.num_unlearned} are left out; use data with others"
            )
        if not self.num_prompts:
            needed = rules.min_context_size + (not self.only_prompts)  # a dialogue holds the reply
            count = roles.num_records
            raise UserError(
                f"{where}: no prompts; {count} dialogues were read, {count - overlap} are left after drop_overlap, and the "
                f"longest has {self.longest} turns, but min_context_size {rules.min_context_size} needs {needed}; lower "
                "min_context_size, turn drop_overlap off, or use other data"
            )
        if len(self.places) < self.num_prompts:
            text = "%d prompts have no reply to learn from and are left out: the reward needs %s"
            logger.info(text, self.num_prompts - len(self.places), " and ".join(self.needs))


def data_fingerprint(prompts: Sequence[Dialogue]) -> str:
    """The number of prompts, and a hash of their turns, references, acts, system messages and tools."""
    return prompts.facts[0] if isinstance(prompts, Prompts) else PromptFacts(prompts).fingerprint


def shared_system(prompts: Sequence[Dialogue]) -> str | None:
    """The system message that all prompts have; None where they differ, or have none."""
    return prompts.facts[1] if isinstance(prompts, Prompts) else PromptFacts(prompts).system


def count_missing(prompts: Sequence[Dialogue], name: str) -> int:
    """How many prompts have no `reference`, or no `act`."""
    if isinstance(prompts, Prompts) and name in LACKS:
        return int(prompts.flagged(LACKS[name]).sum())
    return sum(getattr(prompt, name) is None for prompt in prompts)


def having(prompts: Sequence[Dialogue], flags: int | None) -> Iterator[tuple[int, Dialogue]]:
    """The prompts that may have one of the flags, with their numbers: all for None, and all that are not `Prompts`."""
    if isinstance(prompts, Prompts) and flags is not None:
        return ((number, prompts[number]) for number in map(int, np.flatnonzero(prompts.flagged(flags))))
    return enumerate(prompts)


def select(prompts: Sequence[Dialogue], kept: Array) -> Sequence[Dialogue]:
    """Those of which `kept` (N,) is True."""
    if isinstance(prompts, Prompts):
        return prompts.select(kept)
    return [prompt for prompt, keep in zip(prompts, kept, strict=True) if keep]


def row_numbers(prompts: Sequence[Dialogue]) -> Array:
    """(N,) the number of the dialogue of the data from which each prompt is; those that are not `Prompts` are counted anew."""
    if isinstance(prompts, Prompts):
        return prompts.dialogues
    known: dict[Any, int] = {}
    rows = ((one.origin_of("split"), one.origin_of("dialogue", id(one))) for one in prompts)
    return np.array([known.setdefault(row, len(known)) for row in rows], dtype=np.uint32)


def _without_separator(record: DialogueRecord, separator: str | None) -> tuple[DialogueRecord, int]:
    """The record with a space in place of the separator, and the number of its texts that hold it."""
    count = 0 if separator in (None, CHAT_TEMPLATE) else sum(str(separator) in text for text in _texts(record))
    if not count:
        return record, 0
    turns = [remove_marks(turn, [str(separator)]) for turn in record.turns]
    versions = [[remove_marks(text, [str(separator)]) for text in some] for some in record.references or ()]
    return replace(record, turns=turns, references=versions or record.references), count


def _texts(record: DialogueRecord) -> Iterator[str]:
    """All turns and references of one dialogue."""
    yield from record.turns
    for some in record.references or ():
        yield from some


def prompts_of(record: DialogueRecord, rules: PromptRules) -> list[Dialogue]:
    """One prompt for every reply with at least `min_context_size` turns before it; it holds the last `context_size` of them.

    A reply is a turn of the assistant, or of `reply_roles`; where the roles do not say who replies, every turn is one. A record
    that is a prompt gives itself, unless it is too short or ends with a reply. Replies that the data says not to learn are in
    the turns before others; with `unanswered` they give a prompt without a reference.
    """
    turns = spoken_turns(record, rules.reply_roles, rules.turn_separator == CHAT_TEMPLATE)
    texts, least = [turn.text for turn in turns], rules.min_context_size
    has_roles = read_speakers(record.roles, rules.reply_roles) is not None
    roles = ["assistant" if turn.is_reply else "user" for turn in turns]

    def prompt(end: int, replied: list[str], reply: int | None, messages: int) -> Dialogue:
        """The prompt of the turns before `end`, after so many `messages`; `reply`: the number of its message."""
        versions = record.references[reply] if record.references and reply is not None else []
        references = list(dict.fromkeys([*replied, *versions]))
        system = BLANK_LINE.join(text for number, text in record.system if number <= messages)
        return Dialogue(
            prompt_turns=texts[max(0, end - rules.context_size) : end],
            reference=references[0] if references else None,
            act=record.acts[reply] if record.acts and reply is not None else None,
            meta=dict(record.meta),
            references=references,
            system=SystemText(system, record.tools) if record.tools else system or None,
            roles=roles[max(0, end - rules.context_size) : end] if has_roles else None,
        )

    if record.is_prompt:
        if record.meta.get("unanswered") and not rules.unanswered:
            return []
        complete = len(turns) >= least and not turns[-1].is_reply
        return [prompt(len(turns), [], 0, len(record.turns))] if complete else []
    prompts = []
    for i, turn in enumerate(turns):
        if turn.is_reply and i >= least and _is_learned(turn, record):
            prompts.append(prompt(i, [turn.text], turn.last, turn.first))
        elif turn.is_reply and i >= least and rules.unanswered:
            prompts.append(prompt(i, [], None, turn.first))
    if rules.unanswered and not turns[-1].is_reply and len(turns) >= least:
        prompts.append(prompt(len(turns), [], None, len(record.turns)))
    for one in prompts:
        one.meta |= {} if one.references else {"unanswered": True}
    return prompts


def _is_learned(turn: SpokenTurn, record: DialogueRecord) -> bool:
    """Whether each message of a turn may be a reply to learn."""
    return all(record.learned[turn.first : turn.last + 1])


def _count_unlearned(record: DialogueRecord, rules: PromptRules) -> int:
    """How many replies of a record its data says not to learn."""
    if record.is_prompt:
        return len(record.learned)
    return sum(turn.is_reply and not _is_learned(turn, record) for turn in spoken_turns(record, rules.reply_roles))
