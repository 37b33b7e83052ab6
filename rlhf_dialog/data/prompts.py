"""Dialogues of a data set -> prompts with references and acts; training dialogues that repeat held-out ones."""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from rlhf_dialog.data.dialogue import AUTO, CHAT_TEMPLATE, Dialogue, SystemText, remove_marks
from rlhf_dialog.data.sources import SPLITS, DialogueRecord, load_records
from rlhf_dialog.data.sources.columns import Columns
from rlhf_dialog.data.sources.kinds import find
from rlhf_dialog.data.sources.splits import SplitNames
from rlhf_dialog.data.speakers import (
    BLANK_LINE,
    SpokenTurn,
    check_reply_roles,
    describe_roles,
    read_speakers,
    spoken_turns,
)
from rlhf_dialog.errors import UserError

logger = logging.getLogger(__name__)

MIN_OVERLAP_TOKENS = 4


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

    def load(self, data_path: str, split: str) -> list[Dialogue]:
        """The prompts of one split, see `prompts_of`. A warning counts the texts that hold the separator.

        Dialogues in which tools are called are read for a chat template (`keep_writable`), else left out.

        Raises UserError when the data cannot be read or gives no prompt, MissingSplit when it has no such split.
        """
        where = f"{data_path}, {split}"
        records = load_records(data_path, split, self.columns, self.split, self.turn_separator == CHAT_TEMPLATE)
        check_reply_roles(records, self.reply_roles, where)
        overlap = self._overlap(records, data_path) if self.drop_overlap and split == "train" else set()
        kept = {number: record for number, record in enumerate(records) if number not in overlap}
        if self.turn_separator not in (None, CHAT_TEMPLATE):
            kept = _without_separator(kept, str(self.turn_separator), where)
        if commas := sum("_comma_" in text for record in kept.values() for text in _texts(record)):
            logger.warning("%s: %d turns or references hold '_comma_' in place of a comma; replace it", where, commas)
        if line := describe_roles(records, self.reply_roles):
            logger.log(logging.WARNING if "reply_roles" in line else logging.INFO, "%s: %s", where, line)
        prompts: list[Dialogue] = []
        for number, dialogue in first_rows(kept).items():
            for prompt in prompts_of(kept[number], self):
                prompts.append(prompt.from_origin(split=split, index=len(prompts), dialogue=dialogue))
        asked = [record for record in kept.values() if record.is_prompt]
        if ended := sum(spoken_turns(record, self.reply_roles)[-1].is_reply for record in asked):
            logger.warning("%s: %d of %d prompts end with the assistant and are left out", where, ended, len(records))
        if skipped := sum(_count_unlearned(record, self) for record in kept.values()):
            text = "%s: %d replies are not learned (weight, train, loss or trainable is 0 or false, or their label is false)"
            logger.warning(text, where, skipped)
        if not prompts and skipped:
            raise UserError(
                f"{where}: no prompts: no reply may be learned, {skipped} are left out; use data with others"
            )
        if not prompts:
            longest = max((len(record.turns) for record in kept.values()), default=0)
            needed = self.min_context_size + (not records[0].is_prompt)  # a dialogue holds the reply
            raise UserError(
                f"{where}: no prompts; {len(records)} dialogues were read, {len(kept)} are left after drop_overlap, and the "
                f"longest has {longest} turns, but min_context_size {self.min_context_size} needs {needed}; lower "
                "min_context_size, turn drop_overlap off, or use other data"
            )
        return prompts

    def _overlap(self, records: list[DialogueRecord], data_path: str) -> set[int]:
        """The numbers of the training dialogues that nearly repeat a held-out one; raises when those cannot be read."""
        try:
            parts = [load_records(data_path, split, self.columns, self.split, quiet=True) for split in SPLITS[1:]]
        except UserError as error:
            raise UserError(
                f"drop_overlap: needs the validation and test splits; turn it off, or fix this: {error}"
            ) from error
        held_out = [long_utterances(record) for part in parts for record in part]
        overlap = find_repeats([*map(long_utterances, records)], held_out)
        text = "drop_overlap: left out %d of %d train dialogues that nearly repeat one of validation or test"
        logger.info(text, len(overlap), len(records))
        return overlap


def load_prompts(
    data_path: str,
    split: str,
    context_size: int = 5,
    min_context_size: int = 1,
    drop_overlap: bool = False,
    turn_separator: str | None = "<EOU>",
) -> list[Dialogue]:
    """The prompts of one split by these `PromptRules`; raises as `PromptRules.load`."""
    return PromptRules(context_size, min_context_size, drop_overlap, turn_separator).load(data_path, split)


def first_rows(records: dict[int, DialogueRecord]) -> dict[int, int]:
    """The number of each record's dialogue: its own, and for prompts of one dialogue that of the first of them."""
    first: dict[str, int] = {}
    numbers = {}
    for number, record in records.items():
        key = find(record.meta, "dialog_id") if record.is_prompt else None
        numbers[number] = number if key is None else first.setdefault(repr(record.meta[key]), number)
    return numbers


def _without_separator(records: dict[int, DialogueRecord], separator: str, where: str) -> dict[int, DialogueRecord]:
    """The records with a space in place of the separator. Raises UserError for a turn or a reference that is nothing else."""
    holders = {i: record for i, record in records.items() if any(separator in text for text in _texts(record))}
    if not holders:
        return records
    count = sum(separator in text for record in holders.values() for text in _texts(record))
    line = "%s: %d turns or references hold the turn_separator '%s'; a space replaces it there"
    logger.warning(line, where, count, separator)
    for number, record in holders.items():
        turns = [remove_marks(turn, [separator]) for turn in record.turns]
        versions = [[remove_marks(text, [separator]) for text in some] for some in record.references or ()]
        holders[number] = replace(record, turns=turns, references=versions or record.references)
        if not all(_texts(holders[number])):
            raise UserError(
                f"{where}: dialogue {number + 1} has a turn or reference that is only the turn_separator '{separator}'; remove it"
            )
    return records | holders


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


def find_repeats(dialogues: Sequence[set[str]], others: Sequence[set[str]]) -> set[int]:
    """Positions of the dialogues of which at least half of the long utterances are in one of the others."""
    holders: dict[str, list[int]] = defaultdict(list)
    for index, utterances in enumerate(others):
        for utterance in utterances:
            holders[utterance].append(index)
    repeats = set()
    for index, utterances in enumerate(dialogues):
        shared = Counter(holder for utterance in utterances for holder in holders.get(utterance, ()))
        if shared and 2 * max(shared.values()) >= len(utterances):
            repeats.add(index)
    return repeats


def long_utterances(record: DialogueRecord) -> set[str]:
    """The distinct turns of 4 tokens or more (split at white space), lower-case letters and digits only."""
    long_turns = (turn for turn in record.turns if len(turn.split()) >= MIN_OVERLAP_TOKENS)
    return {"".join(filter(str.isalnum, turn.lower())) for turn in long_turns} - {""}
