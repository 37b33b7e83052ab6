"""Prompts in training: their token ids, with a separator at the end of each turn, and their order."""

import logging
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from itertools import takewhile
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from rlhf_dialog.data.dialogue import (
    Dialogue,
    cut_at_separator,
    fit_newest,
    remove_marks,
    render_prompt,
    render_reply,
    render_target,
)
from rlhf_dialog.errors import UserError

logger = logging.getLogger(__name__)
PROBE, PROBE_REPLY = "Hello", "Quite so"  # turns that begin differently


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
            self._heads[system] = count_shared(*(self._writer(system)([turn]) for turn in (PROBE, PROBE_REPLY)))
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
    needed = len(encoder.tokenizer(PROBE, add_special_tokens=False)["input_ids"])
    if encoder.count_room(system_prompt) < needed:
        raise UserError(
            f"system_prompt: takes {encoder.head()} of the {encoder.max_prompt_length} tokens of max_prompt_length, which leaves "
            "no room for a turn; shorten it, or raise max_prompt_length"
        )


def warn_about_cut(
    encoder: Any,
    newest: Iterable[Dialogue],
    gather: Callable[[list[int]], list[list[int]]] = lambda sizes: [sizes],
) -> None:
    """A warning with the number of prompts whose newest turn does not fit whole, and with what would do.

    `gather` adds the sizes of the turns of other processes.
    """
    whole = copy(encoder)
    whole.max_prompt_length = 2**31
    lengths = [len(whole.encode_prompt(dialogue.prompt_turns[-1:], dialogue.system)) for dialogue in newest]
    sizes = [size for some in gather(lengths) for size in some]
    if cut := sum(size > encoder.max_prompt_length for size in sizes):
        text = "%d of %d prompts lose the beginning of their newest turn: max_prompt_length is %d, and %d would do"
        logger.warning(text, cut, len(sizes), encoder.max_prompt_length, max(sizes))


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
