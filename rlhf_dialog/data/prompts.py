"""Dialogues -> prompts with references and acts, their token ids, and the order in which training uses them.

B prompts, P prompt tokens.
"""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np
from transformers import PreTrainedTokenizerBase

from rlhf_dialog.data.dialogue import (
    CHAT_TEMPLATE,
    Dialogue,
    cut_at_separator,
    fit_turns,
    remove_marks,
    render_reply,
    render_target,
)
from rlhf_dialog.data.sources import DialogueRecord, load_records
from rlhf_dialog.data.sources.messages import first_filled
from rlhf_dialog.data.sources.rows import ID_KEYS
from rlhf_dialog.errors import UserError

logger = logging.getLogger(__name__)

MIN_OVERLAP_TOKENS = 4


def load_prompts(
    data_path: str,
    split: str,
    context_size: int = 5,
    min_context_size: int = 1,
    drop_overlap: bool = False,
    turn_separator: str | None = "<EOU>",
) -> list[Dialogue]:
    """One prompt for every turn with at least `min_context_size` turns before it; it holds the last `context_size` of them.

    Data that consists of prompts gives one prompt for each row with at least `min_context_size` turns. `drop_overlap` leaves
    out training dialogues that nearly repeat one of validation or test; it affects only the split "train". Inside a turn or a
    reference, a space replaces `turn_separator` (None: nothing is replaced), and a warning counts them.
    Raises UserError when the data cannot be read or gives no prompt, MissingSplit when it has no such split.
    """
    records = load_records(data_path, split)
    overlap = _overlap(records, data_path) if drop_overlap and split == "train" else set()
    kept = {number: record for number, record in enumerate(records) if number not in overlap}
    if turn_separator not in (None, CHAT_TEMPLATE):
        kept = _without_separator(kept, str(turn_separator), f"{data_path}, {split}")
    prompts: list[Dialogue] = []
    for number, dialogue in first_rows(kept).items():
        for prompt in _prompts(kept[number], context_size, min_context_size):
            prompt.meta |= {"split": split, "index": len(prompts), "dialogue": dialogue}
            prompts.append(prompt)
    if not prompts:
        longest = max((len(record.turns) for record in kept.values()), default=0)
        needed = min_context_size + (0 if records and records[0].is_prompt else 1)  # a dialogue also holds the reply
        raise UserError(
            f"{data_path}, {split}: no prompts; {len(records)} dialogues were read, {len(kept)} are left after "
            f"drop_overlap, and the longest has {longest} turns, but min_context_size {min_context_size} needs "
            f"{needed}; lower min_context_size, turn drop_overlap off, or use other data"
        )
    return prompts


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
    holders = {
        number: record for number, record in records.items() if any(separator in text for text in _texts(record))
    }
    if not holders:
        return records
    logger.warning(
        "%s: %d turns or references hold the turn_separator '%s'; a space replaces it there",
        where,
        sum(separator in text for record in holders.values() for text in _texts(record)),
        separator,
    )
    marks = re.compile(re.escape(separator))
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


def _prompts(record: DialogueRecord, context_size: int, min_context_size: int) -> list[Dialogue]:
    """The prompts of one dialogue; a record that is a prompt gives itself, when it is long enough."""
    num_turns = len(record.turns)
    if record.is_prompt:
        return [_prompt(record, num_turns, 0, [], context_size)] if num_turns >= min_context_size else []
    return [_prompt(record, i, i, [record.turns[i]], context_size) for i in range(min_context_size, num_turns)]


def _prompt(record: DialogueRecord, end: int, reply: int, said: list[str], context_size: int) -> Dialogue:
    """The prompt of the turns before `end`; `reply` is the index of its reply in the record's acts and references."""
    references = list(dict.fromkeys([*said, *(record.references[reply] if record.references else ())]))
    return Dialogue(
        prompt_turns=record.turns[max(0, end - context_size) : end],
        reference=references[0] if references else None,
        act=record.acts[reply] if record.acts else None,
        meta=dict(record.meta),
        references=references,
    )


def _overlap(records: list[DialogueRecord], data_path: str) -> set[int]:
    """The result of `find_overlap`, which is also logged. Raises UserError when a held-out split cannot be read."""
    try:
        held_out = load_records(data_path, "validation") + load_records(data_path, "test")
    except UserError as error:
        raise UserError(
            f"drop_overlap: needs the validation and test splits; turn it off, or fix this: {error}"
        ) from error
    overlap = find_overlap(records, held_out)
    logger.info(
        "drop_overlap: left out %d of %d train dialogues that nearly repeat one of validation or test",
        len(overlap),
        len(records),
    )
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

    Inside a turn, a space replaces the separator.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, separator: str, max_prompt_length: int):
        self.tokenizer = tokenizer
        self.separator = separator
        self._marks = re.compile(re.escape(separator))
        self._added = {i for token, i in tokenizer.get_added_vocab().items() if separator in token}
        self.max_prompt_length = max_prompt_length
        first = tokenizer("a")["input_ids"][:1]
        self.prefix = first if first == [tokenizer.bos_token_id] else []
        self.pad_id = pad_id(tokenizer)

    def encode_prompt(self, turns: Sequence[str]) -> list[int]:
        """At most `max_prompt_length` ids, including a BOS token in front where the tokenizer adds one itself."""
        room = self.max_prompt_length - len(self.prefix)
        return self.prefix + fit_turns([*map(self.spoken, turns)], self.separator, self._encode, room)

    def spoken(self, turn: str) -> str:
        """The turn as the model sees it."""
        return remove_marks(turn, self._marks)

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
        return len(ids) - sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, text_ids, strict=False)))

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
