"""Dialogues -> prompts with references and acts, their token ids, and the order in which training uses them.

B prompts, P prompt tokens.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from rlhf_dialog.data.dialogue import (
    AUTO,
    CHAT_TEMPLATE,
    Dialogue,
    SystemText,
    cut_at_separator,
    fit_newest,
    remove_marks,
    render_prompt,
    render_reply,
    render_target,
)
from rlhf_dialog.data.sources import SPLITS, DialogueRecord, load_records
from rlhf_dialog.data.sources.columns import Columns
from rlhf_dialog.data.sources.messages import first_filled
from rlhf_dialog.data.sources.rows import ID_KEYS
from rlhf_dialog.data.sources.splits import NO_NAMES, SplitNames
from rlhf_dialog.data.speakers import BLANK_LINE, check_reply_roles, describe_roles, read_speakers, spoken_turns
from rlhf_dialog.errors import UserError

logger = logging.getLogger(__name__)

MIN_OVERLAP_TOKENS = 4
PROBES = ("Hello", "Quite so")  # turns that begin differently


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
    unanswered: bool = False  # a dialogue that ends with the user gives one prompt more, without a reference

    def __post_init__(self) -> None:
        if self.turn_separator == AUTO:
            raise ValueError(
                "turn_separator: auto must be settled (models.chat_agent.settle_separator) before data is read"
            )

    @classmethod
    def from_keys(cls, keys: Any) -> "PromptRules":
        """The rules of a configuration; defaults for the keys that it does not have."""
        sizes, others = ("context_size", "min_context_size"), ("drop_overlap", "turn_separator", "reply_roles")
        names = (*sizes, *others, "columns", "split")
        rules = {name: value for name in names if (value := getattr(keys, name, None)) is not None}
        if hasattr(keys, "env"):
            rules |= {"columns": keys.env.args.columns, "split": keys.env.args.split}
        return cls(**rules | {"reply_roles": tuple(rules.get("reply_roles", ()))})

    def load(self, data_path: str, split: str) -> list[Dialogue]:
        """The prompts of one split, see `prompts_of`. A warning counts the texts that hold the separator.

        Dialogues in which tools are called are read for a chat template (`keep_writable`), else left out.

        Raises UserError when the data cannot be read or gives no prompt, MissingSplit when it has no such split.
        """
        where = f"{data_path}, {split}"
        with_calls = self.turn_separator == CHAT_TEMPLATE
        records = load_records(data_path, split, self.columns, self.split, with_calls)
        check_reply_roles(records, self.reply_roles, where)
        overlap = (
            _overlap(records, data_path, self.columns, self.split) if self.drop_overlap and split == "train" else set()
        )
        kept = {number: record for number, record in enumerate(records) if number not in overlap}
        if self.turn_separator not in (None, CHAT_TEMPLATE):
            kept = _without_separator(kept, str(self.turn_separator), where)
        if line := describe_roles(records, self.reply_roles):
            logger.log(logging.WARNING if "reply_roles" in line else logging.INFO, "%s: %s", where, line)
        prompts: list[Dialogue] = []
        for number, dialogue in first_rows(kept).items():
            for prompt in prompts_of(kept[number], self):
                prompt.meta |= {"split": split, "index": len(prompts), "dialogue": dialogue}
                prompts.append(prompt)
        asked = [record for record in kept.values() if record.is_prompt]
        if ended := sum(spoken_turns(record, self.reply_roles)[-1].is_reply for record in asked):
            logger.warning("%s: %d of %d prompts end with the assistant and are left out", where, ended, len(records))
        if not prompts:
            longest = max((len(record.turns) for record in kept.values()), default=0)
            needed = self.min_context_size + (
                0 if records and records[0].is_prompt else 1
            )  # a dialogue holds the reply
            raise UserError(
                f"{where}: no prompts; {len(records)} dialogues were read, {len(kept)} are left after drop_overlap, and the "
                f"longest has {longest} turns, but min_context_size {self.min_context_size} needs {needed}; lower "
                "min_context_size, turn drop_overlap off, or use other data"
            )
        return prompts


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
    return {
        number: first.setdefault(ident, number) if (ident := _ident(record)) else number
        for number, record in records.items()
    }


def _ident(record: DialogueRecord) -> str | None:
    """What the prompts of one dialogue share, where each row of the data is a prompt; None where a row does not say it."""
    key = first_filled(ID_KEYS, record.meta) if record.is_prompt else None
    return None if key is None else repr(record.meta[key])


def _without_separator(records: dict[int, DialogueRecord], separator: str, where: str) -> dict[int, DialogueRecord]:
    """The records with a space in place of the separator. Raises UserError for a turn or a reference that is nothing else."""
    holders = {i: record for i, record in records.items() if any(separator in text for text in _texts(record))}
    if not holders:
        return records
    count = sum(separator in text for record in holders.values() for text in _texts(record))
    line = "%s: %d turns or references hold the turn_separator '%s'; a space replaces it there"
    logger.warning(line, where, count, separator)
    marks = [separator]
    changed = {
        number: replace(
            record,
            turns=[remove_marks(turn, marks) for turn in record.turns],
            references=record.references
            and [[remove_marks(text, marks) for text in some] for some in record.references],
        )
        for number, record in holders.items()
    }
    for number, record in changed.items():
        if not all(_texts(record)):
            raise UserError(
                f"{where}: dialogue {number + 1} has a turn or reference that is only the turn_separator '{separator}'; remove it"
            )
    return records | changed


def _texts(record: DialogueRecord) -> Iterator[str]:
    """All turns and references of one dialogue."""
    yield from record.turns
    for some in record.references or ():
        yield from some


def prompts_of(record: DialogueRecord, rules: PromptRules) -> list[Dialogue]:
    """One prompt for every reply with at least `min_context_size` turns before it; it holds the last `context_size` of them.

    A reply is a turn of the assistant, or of `reply_roles`; where the roles do not say who replies, every turn is one. A record
    that is a prompt gives itself, unless it is too short or ends with a reply.
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
    replies = [prompt(i, [x.text], x.last, x.first) for i, x in enumerate(turns) if x.is_reply and i >= least]
    if rules.unanswered and not turns[-1].is_reply and len(turns) >= least:
        replies.append(prompt(len(turns), [], None, len(record.turns)))
        replies[-1].meta["unanswered"] = True
    return replies


def _overlap(records: list[DialogueRecord], data_path: str, columns: Columns, names: SplitNames = NO_NAMES) -> set[int]:
    """The result of `find_overlap`, which is also logged. Raises UserError when a held-out split cannot be read."""
    try:
        held_out = [one for split in SPLITS[1:] for one in load_records(data_path, split, columns, names, quiet=True)]
    except UserError as error:
        raise UserError(
            f"drop_overlap: needs the validation and test splits; turn it off, or fix this: {error}"
        ) from error
    overlap = find_overlap(records, held_out)
    text = "drop_overlap: left out %d of %d train dialogues that nearly repeat one of validation or test"
    logger.info(text, len(overlap), len(records))
    return overlap


def find_overlap(train_records: Sequence[DialogueRecord], held_out_records: Sequence[DialogueRecord]) -> set[int]:
    """Positions of the training dialogues that nearly repeat a held-out one.

    That is: at least half of its distinct utterances of 4 tokens or more (split at white space; compared in lower case,
    letters and digits only) are also in one held-out dialogue, as utterances of 4 tokens or more.
    """
    return find_repeats([*map(long_utterances, train_records)], [*map(long_utterances, held_out_records)])


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
    """The distinct turns of 4 tokens or more, letters and digits only."""
    long_turns = (turn for turn in record.turns if len(turn.split()) >= MIN_OVERLAP_TOKENS)
    return {"".join(filter(str.isalnum, turn.lower())) for turn in long_turns} - {""}


class PromptEncoder:
    """Prompts and targets as token ids of one tokenizer, and replies back to text; a separator ends every turn.

    Inside a turn, a space replaces the separator and the special tokens. A system message is the first turn, which is not cut.
    Raises UserError when `system_prompt`, the system message of prompts that have none of their own, leaves no room for a turn.
    """

    rewrites_history = False  # a longer prompt begins with the ids of a shorter one and its reply

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        separator: str,
        max_prompt_length: int,
        system_prompt: str | None = None,
    ):
        self.tokenizer = tokenizer
        self.separator = separator
        self.marks = longest_first({separator, *special_tokens(tokenizer)})
        self._added = {i for token, i in tokenizer.get_added_vocab().items() if separator in token}
        self.max_prompt_length = max_prompt_length
        first = tokenizer("a")["input_ids"][:1]
        self.prefix = first if first == [tokenizer.bos_token_id] else []
        self.pad_id = pad_id(tokenizer)
        self.system_prompt = system_prompt
        self._heads: dict[str | None, int] = {}
        if system_prompt is not None:
            check_room(self, system_prompt)

    def encode_prompt(self, turns: Sequence[str], system: str | None = None) -> list[int]:
        """At most `max_prompt_length` ids, including a BOS token in front where the tokenizer adds one itself.

        `system`: the system message of this dialogue; None: `system_prompt`.
        """
        return fit_newest([*map(self.spoken, turns)], self._writer(system), self.max_prompt_length, self.head(system))

    def head(self, system: str | None = None) -> int:
        """How many of the first ids of a prompt with this system message are never cut."""
        if system is None and self.system_prompt is None:
            return len(self.prefix)
        if system not in self._heads:
            self._heads[system] = count_shared(*(self._writer(system)([turn]) for turn in PROBES))
        return self._heads[system]

    def count_room(self, system: str | None = None) -> int:
        """How many of `max_prompt_length` tokens are left for turns beside this system message."""
        return self.max_prompt_length - len(self._writer(system)([])) if system else self.max_prompt_length

    def _writer(self, system: str | None) -> Callable[[Sequence[str]], list[int]]:
        text = self.system_prompt if system is None else system
        first = [] if text is None else [self.spoken(text.strip())]
        return lambda turns: self.prefix + self._encode(render_prompt([*first, *turns], self.separator))

    def encode_example(
        self, turns: Sequence[str], reply: str, system: str | None = None, learn_eos: bool = False
    ) -> tuple[list[int], list[int]]:
        """What supervised fine-tuning reads, and what it learns after that."""
        return self.encode_prompt(turns, system), (self.encode_target if learn_eos else self.encode_reply)(reply)

    def spoken(self, turn: str) -> str:
        """The turn as the model sees it."""
        return remove_marks(turn, self.marks)

    def encode_target(self, turn: str) -> list[int]:
        """A whole target of supervised fine-tuning: the reply, the separator, the end-of-text id."""
        if self.tokenizer.eos_token_id is None:
            raise UserError("tokenizer: it has no end-of-text token (eos_token); set one in its tokenizer_config.json")
        return [*self.encode_reply(turn), self.tokenizer.eos_token_id]

    def encode_reply(self, turn: str) -> list[int]:
        """What follows a prompt: the reply and the separator."""
        return self._encode(render_target(self.spoken(turn), self.separator))

    def count_end_ids(self, turn: str) -> int:
        """How many of the last ids of `encode_reply(turn)` are the separator and the space before it; all for a blank turn.

        A token that holds the end of the text and the beginning of the separator counts, too.
        """
        turn = self.spoken(turn)
        ids, text_ids = self._encode(render_target(turn, self.separator)), self._encode(render_reply(turn))
        if not turn.strip():
            return len(ids)
        return len(ids) - count_shared(ids, text_ids)

    def encode_heard(self, reply_ids: list[int], turn: str) -> list[int]:
        """The ids between the policy's reply and its next one: a separator if the reply has none, then the user's turn."""
        closed = self.separator in str(self.tokenizer.decode(reply_ids, skip_special_tokens=False))
        return ([] if closed else self._encode(f" {self.separator}")) + self.encode_reply(turn)

    def reply_text(self, ids: list[int]) -> str:
        """The text that rewards and metrics see: cut at the first separator, special tokens removed, stripped."""
        ids = list(takewhile(lambda i: i not in self._added, ids))  # decoded, special ones would be lost
        return cut_at_separator(str(self.tokenizer.decode(ids, skip_special_tokens=True)), self.separator)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def count_shared(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of ids with which both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def check_room(encoder: Any, system_prompt: str) -> None:
    """Raises UserError when the system prompt of an encoder leaves no room for a turn."""
    needed = len(encoder.tokenizer(PROBES[0], add_special_tokens=False)["input_ids"])
    if encoder.count_room(system_prompt) < needed:
        raise UserError(
            f"system_prompt: takes {encoder.head()} of the {encoder.max_prompt_length} tokens of max_prompt_length, which leaves "
            "no room for a turn; shorten it, or raise max_prompt_length"
        )


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """The texts of the tokens that no text of people may become, without those that are white space."""
    added = tokenizer.added_tokens_decoder.values()
    tokens = {*tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
    return {token for token in tokens if token.strip()}


def longest_first(tokens: Iterable[str]) -> list[str]:
    """The order in which `remove_marks` takes them: a token before those that it contains."""
    return sorted(tokens, key=lambda token: (-len(token), token))


def separator_ids(tokenizer: PreTrainedTokenizerBase, separator: str) -> set[int]:
    """The ids of all tokens that hold the separator; empty where an end shows in the text alone.

    Ids can be trusted only where the separator is an added token, which a tokenizer never divides, and where it is the last
    token of a rendered reply. (GPT-2 has a token for "###", but writes " ###", with the space, as another one.)
    """
    added = tokenizer.get_added_vocab().get(separator)
    reply = tokenizer(render_target("a", separator), add_special_tokens=False)["input_ids"]
    if added is None or reply[-1:] != [added]:
        return set()
    candidates = [i for token, i in tokenizer.get_vocab().items() if separator in token]
    texts = tokenizer.batch_decode([[i] for i in candidates], skip_special_tokens=False)
    return {added} | {i for i, text in zip(candidates, texts, strict=True) if separator in text}


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """An id to fill batches with; its value does not matter, because masks say what counts."""
    pads = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(i for i in pads if i is not None)


class PromptSampler:
    """Shuffled epochs without replacement. (seed, epoch) determines the permutation, so a position is two integers."""

    def __init__(self, num_prompts: int, seed: int):
        if num_prompts < 1:
            raise ValueError("PromptSampler needs at least one prompt")
        self.num_prompts = num_prompts
        self.seed = seed
        self._move(0, 0)

    def _move(self, epoch: int, index: int) -> None:
        self.epoch, self.index = epoch, index
        self._order = np.random.default_rng([self.seed, epoch]).permutation(self.num_prompts)

    def take(self, n: int) -> list[int]:
        """The next `n` prompt numbers; after the end of an epoch, the next one begins."""
        taken: list[int] = []
        while len(taken) < n:
            part = self._order[self.index : self.index + n - len(taken)].tolist()
            taken += part
            self.index += len(part)
            if self.index == self.num_prompts:
                self._move(self.epoch + 1, 0)
        return taken

    def state_dict(self) -> dict[str, int]:
        """The state from which `load_state_dict` continues with exactly the same prompts (given the same seed and data)."""
        return {"epoch": self.epoch, "index": self.index}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Move to a stored position. Raises UserError when it is outside the data."""
        epoch, index = state["epoch"], state["index"]
        if epoch < 0 or not 0 <= index < self.num_prompts:
            raise UserError(
                f"data position: epoch {epoch}, prompt {index} is outside the {self.num_prompts} prompts; resume with "
                "the data, context_size and min_context_size of the checkpoint"
            )
        self._move(epoch, index)
