"""Replies of an agent, and of baselines that need no model, to the same held-out prompts. B prompts."""

import logging
import math
import random
import re
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from rich.progress import track

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.intervals import Array
from rlhf_dialog.metrics.text import others
from rlhf_dialog.models.generation import Responder, Sampling, random_numbers
from rlhf_dialog.models.part_sizes import EVALUATION
from rlhf_dialog.models.policy import num_positions, teacher_forced
from rlhf_dialog.models.precision import without_tf32
from rlhf_dialog.models.token_batch import send
from rlhf_dialog.terminal import each_logged

logger = logging.getLogger(__name__)
T = TypeVar("T")
CONSTANT_REPLY = "Yes , I am ."
LONG_CONSTANT_REPLY = "I don't know , but I think it is a good idea for you to do that ."
INFORM_REPLY = "It is on the second floor ."
INFORM = 0  # the classifier's class of act 1


@dataclass
class Replies:
    """The replies of one system to B prompts, and their lengths in policy tokens.

    `reference_nll` (B, 2): the summed negative log-likelihood in nats of the prompt's reference under the system, and its
    number of tokens; None for a system without a model. `always_act`: the class that the system's replies count as.
    """

    dialogues: list[Dialogue]
    num_tokens: list[int]
    reference_nll: Array | None = None
    always_act: int | None = None


def generate_replies(
    responder: Responder,
    prompts: list[Dialogue],
    sampling: Sampling,
    seed: int = 0,
    batch_size: int = 64,
    title: str = "replies",
) -> Replies:
    """Answer every prompt; a reply is decided by the seed and the number of its prompt, not by the batch or the device."""
    limits = replace(responder.limits, rows_at_once=max(responder.limits.rows_at_once, batch_size))
    return generate_share(responder.local(sampling, limits), prompts, range(len(prompts)), seed, batch_size, title)


def generate_share(
    responder: Responder, prompts: list[Dialogue], share: range, seed: int, batch_size: int, title: str
) -> Replies:
    """What `generate_replies` gives, with the responder's sampling, for the prompts with the numbers of `share` alone."""
    torch.manual_seed(seed)
    uniform = random_numbers(len(prompts), responder.sampling, torch.device("cpu"))
    dialogues, num_tokens = [], []
    for start in progress(range(share.start, share.stop, batch_size), title):
        rows = slice(start, min(start + batch_size, share.stop))
        replies = responder.reply(prompts[rows], send(uniform[rows], responder.policy.lm.device))
        dialogues += [p.with_reply(x.text, x.truncated) for p, x in zip(prompts[rows], replies, strict=True)]
        num_tokens += [len(reply.ids) for reply in replies]
    return Replies(dialogues, num_tokens)


def join_replies(parts: Sequence[Replies]) -> Replies:
    """The replies of all parts in their order, as `generate_replies` gives them."""
    dialogues = [dialogue for part in parts for dialogue in part.dialogues]
    return Replies(dialogues, [count for part in parts for count in part.num_tokens])


@torch.no_grad()
@without_tf32()
def reference_nll(responder: Responder, prompts: list[Dialogue], batch_size: int = 64) -> Array:
    """The negative log-likelihood of each prompt's first reference, with its end token, under the responder's model.

    (B, 2): nats and tokens. If both do not fit into the model's positions, the prompt loses tokens from the left.
    """
    positions = num_positions(responder.policy.lm)

    def sums(batch: list[Dialogue]) -> Array:
        targets = [responder.encoder.encode_reply(one.reference or "")[: positions and positions - 1] for one in batch]
        room = positions and positions - max(map(len, targets))
        prompt_ids = [responder.encoder.encode_prompt(prompt.prompt_turns, prompt.system) for prompt in batch]
        tokens = responder.batch([ids[-room:] if room else ids for ids in prompt_ids]).with_replies(targets)
        logprobs = teacher_forced(responder.policy.in_float32, tokens, temperature=1.0, with_entropy=False).logprobs
        nll = -logprobs.sum(dim=1)
        return np.asarray(torch.stack([nll, tokens.mask.sum(dim=1)], dim=1).tolist())

    return np.concatenate(map_batches(responder, prompts, batch_size, "reference perplexity", sums))


def map_batches(
    responder: Responder, prompts: list[Dialogue], size: int, title: str, compute: Callable[[list[Dialogue]], T]
) -> list[T]:
    """What `compute` returns for `size` prompts at a time, or for fewer where the responder's GPU has no memory for so many."""
    fit = partial(responder.limits.sizes.in_parts, EVALUATION, size, compute=compute)
    return [
        part for start in progress(range(0, len(prompts), size), title) for part in fit(prompts[start : start + size])
    ]


def progress(items: Sequence[T], title: str) -> Iterable[T]:
    """The items, with a progress bar on a terminal, and a line a minute in a log."""
    if sys.stdout.isatty():
        return track(items, description=title, transient=True)
    return each_logged(items, title, logger)


def baseline_replies(
    prompts: list[Dialogue], training: Sequence[Dialogue], responder: Responder, seed: int = 0
) -> dict[str, Replies]:
    """Replies without a model: what any trained agent has to beat. The random ones are drawn by `seed`.

    Baselines made of references are included only when every prompt has one, those of training replies only when there are
    training prompts, each with a reference. `always_inform` always counts as act 1, without a classifier: it gives the accuracy
    of the most common act.
    """
    draw = random.Random(seed)
    texts: dict[str, Iterable[str]] = {
        "constant_reply": [CONSTANT_REPLY] * len(prompts),
        "long_constant_reply": [LONG_CONSTANT_REPLY] * len(prompts),
        "repeat_last_turn": [prompt.prompt_turns[-1] for prompt in prompts],
        "always_inform": [INFORM_REPLY] * len(prompts),
    }
    if training:
        chosen = draw.choices(range(len(training)), k=len(prompts))
        texts["random_train_reply"] = [training[i].reference or "" for i in chosen]
        texts["nearest_train_reply"] = nearest_replies(prompts, training)
    if have_references(prompts):
        references = [prompt.reference or "" for prompt in prompts]
        texts["true_replies"] = references
        if len(prompts) > 1:
            texts["random_reference"] = [references[i] for i in others(len(prompts), seed, step=-1)]
    baselines = {}
    for name in texts:
        replies = list(texts[name])
        dialogues = [replace(prompt, response=text) for prompt, text in zip(prompts, replies, strict=True)]
        baselines[name] = Replies(dialogues, [len(responder.encoder.encode_reply(text)) for text in replies])
    baselines["always_inform"].always_act = INFORM
    return baselines


def have_references(prompts: Sequence[Dialogue]) -> bool:
    return all(prompt.reference is not None for prompt in prompts)


def have_acts(prompts: Sequence[Dialogue]) -> bool:
    return all(prompt.act is not None for prompt in prompts)


def pick_prompts(prompts: Sequence[Dialogue], max_prompts: int | None, seed: int = 0) -> list[Dialogue]:
    """At most `max_prompts` of the prompts, drawn by `seed`, in their original order."""
    if max_prompts is None or max_prompts >= len(prompts):
        return list(prompts)
    chosen = random.Random(seed).sample(range(len(prompts)), max_prompts)
    return [prompts[i] for i in sorted(chosen)]


_WORD = re.compile(r"[\w']+")


def nearest_replies(prompts: Sequence[Dialogue], training: Sequence[Dialogue]) -> list[str]:
    """The reference of that training prompt whose last turn is nearest to each prompt's; ties: the first one."""
    index = WordIndex(count_words(one.prompt_turns[-1]) for one in training)
    rows = [int(index.cosines(count_words(prompt.prompt_turns[-1])).argmax()) for prompt in prompts]
    return [training[row].reference or "" for row in rows]


def count_words(text: str, pairs: bool = False) -> Counter[str]:
    """How often each word is there; with `pairs` also each two words in a row, and the first and the last word as such."""
    words = _WORD.findall(text.lower())
    return Counter(words + (list(map(" ".join, pairwise(["", *words, ""]))) if pairs else []))


class WordIndex:
    """Which of N texts have a word, with the weight count times log(N / number of texts with it) (Sparck Jones 1972)."""

    def __init__(self, texts: Iterable[Counter[str]]):
        self.rows: dict[str, array[int]] = defaultdict(partial(array, "I"))
        self.counts: dict[str, array[int]] = defaultdict(partial(array, "I"))
        size = 0
        for words in texts:
            for word, count in words.items():
                self.rows[word].append(size)
                self.counts[word].append(count)
            size += 1
        self.rareness = {word: float(np.log(size / len(rows))) for word, rows in self.rows.items()}
        squares = np.zeros(size)
        for word in self.rows:
            rows, weights = self._weights(word)
            squares[rows] += weights**2
        self.lengths = np.sqrt(np.where(squares > 0, squares, 1.0))

    def _weights(self, word: str) -> tuple[Array, Array]:
        """The texts that have the word, and its weight in each."""
        rows, counts = (np.frombuffer(some[word], np.uint32) for some in (self.rows, self.counts))
        return rows.astype(np.intp), counts.astype(np.float64) * self.rareness[word]

    def cosines(self, words: Counter[str]) -> Array:
        """(N,): how near each text is; a word that is in none weighs as one that is in a single text."""
        products, square = np.zeros(len(self.lengths)), 0.0
        for word, count in words.items():
            weight = count * self.rareness.get(word, math.log(max(len(products), 1)))
            square += weight**2
            if word in self.rows:
                rows, weights = self._weights(word)
                products[rows] += weight * weights
        return products / self.lengths / (math.sqrt(square) or 1.0)
