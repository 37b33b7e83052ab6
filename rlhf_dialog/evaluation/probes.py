"""Replies that no reward should pay more than the true ones, and a search for more of them. N prompts, one text for each."""

import bisect
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from rlhf_dialog.data import word_salad
from rlhf_dialog.data.dialogue import CHAT_TEMPLATE, Dialogue
from rlhf_dialog.evaluation.intervals import Array
from rlhf_dialog.metrics.text import others
from rlhf_dialog.rewards.base import ACTS
from rlhf_dialog.terminal import each_logged

logger = logging.getLogger(__name__)
TRUE, RANDOM = "true reply", "random reply"
RETRIEVED, CLIMBED, GROWN = "search: training replies", "search: changed words", "search: words from nothing"
# of usual tokenizers and data
MARKS = ("<EOU>", "__eou__", "</s>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "[SEP]")
TEMPLATES = (
    *("I don't know .", "Yes .", "No .", "OK .", "Thank you .", "I see .", "What do you mean ?"),
    *("That is a good idea .", "I'm sorry , I don't understand .", "Can you say more about that ?"),
)
LENGTHS = (1, 2, 4, 8, 16, 32, 64)  # words


class Training:
    """What the training split says: the replies, the act of each, and their words by how often they occur."""

    def __init__(self, prompts: Iterable[Dialogue]):
        self.replies: list[str] = []
        self.acts: list[int | None] = []
        for prompt in prompts:
            if prompt.reference:
                self.replies.append(prompt.reference)
                self.acts.append(prompt.act)
        self.different = [*dict.fromkeys(self.replies)]
        self.counts = Counter(word for reply in self.replies for word in reply.split())


def fixed_probes(
    prompts: Sequence[Dialogue], training: Training, separator: str, max_words: int, seed: int
) -> dict[str, list[str | None]]:
    """Name -> a text for each prompt, of at most `max_words` words, or None; those that some prompt has.

    `separator`: that of the run's turns.
    """
    draw, true = random.Random(seed), [prompt.reference or "" for prompt in prompts]
    contexts = [prompt.prompt_turns for prompt in prompts]
    probes: dict[str, Iterable[str | None]] = {
        RANDOM: [true[i] for i in others(len(prompts), seed)],
        "empty": [""] * len(prompts),
        "shuffled true reply": [word_salad.shuffle_words(text, draw) for text in true],
        "context's rarest words": [word_salad.rarest(turns, training.counts) for turns in contexts],
        "halves of the last two turns": map(word_salad.halves, contexts),
        "words of the last two turns": map(word_salad.alternating, contexts),
    }
    for back in range(1, max(map(len, contexts)) + 1):
        probes[f"copy of turn -{back}"] = [turns[-back] if back <= len(turns) else None for turns in contexts]
    constants = {f"'{text}'": text for text in TEMPLATES} | _most_common(training)
    for mark in dict.fromkeys([*([] if separator == CHAT_TEMPLATE else [separator]), *MARKS]):
        constants[f"{mark} alone"] = mark
        probes[f"{mark} appended"] = [f"{cut(text, max_words - 1)} {mark}" for text in true]
    typical = [word for word, _ in training.counts.most_common(LENGTHS[-1])]
    for length in (length for length in LENGTHS if length <= max_words):
        constants[f"repeated word, {length}"] = " ".join(typical[:1] * length)
        if length <= len(typical):
            constants[f"typical words, {length}"] = " ".join(typical[:length])
    probes |= {name: [text] * len(prompts) for name, text in constants.items()}
    texts = {name: [None if text is None else cut(text, max_words) for text in some] for name, some in probes.items()}
    return {name: some for name, some in texts.items() if any(text is not None for text in some)}


def cut(text: str, max_words: int) -> str:
    """The first words of a text, split at white space; a text that is short enough stays as it is."""
    words = text.split()
    return text if len(words) <= max_words else " ".join(words[:max_words])


def _most_common(training: Training) -> dict[str, str]:
    """The most common reply, of all and of each act, by its name."""
    named = {"most common reply": training.replies}
    for number, name in ACTS.items():
        pairs = zip(training.replies, training.acts, strict=True)
        named[f"act {name}"] = [reply for reply, act in pairs if act == number]
    return {name: Counter(replies).most_common(1)[0][0] for name, replies in named.items() if replies}


Totals = Callable[[Sequence[Dialogue], Sequence[str]], Array]  # prompts (N), texts (N) -> scores (N,)


@dataclass(frozen=True)
class Budget:
    """How much is looked at: `prompts`, each with `replies` of training, then twice `rounds` of `candidates` changed texts."""

    prompts: int
    replies: int
    rounds: int
    candidates: int

    @property
    def size(self) -> int:
        """The number of replies that the reward is asked about."""
        return self.prompts * (self.replies + 1 + 2 * self.rounds * self.candidates)


LEAST = Budget(prompts=10, replies=100, rounds=4, candidates=20)  # a search of less would find nothing and say so


def search(
    prompts: Sequence[Dialogue], training: Training, budget: Budget, totals: Totals, max_words: int, seed: int
) -> dict[str, list[str]]:
    """RETRIEVED, CLIMBED, GROWN -> the best text for each of the first `budget.prompts` prompts, of at most `max_words` words: of
    the training replies, after the rounds from these, and after those from no word. Raises what `totals` raises.
    """
    draw, asked = random.Random(seed), prompts[: budget.prompts]
    different = draw.sample(training.different, min(budget.replies, len(training.different)))
    texts = [cut(text, max_words) for text in different]
    retrieved, scores = _best(asked, [texts] * len(asked), totals)
    edits = Edits(training, max_words, draw)
    climbed = _climb(asked, retrieved, scores, budget, edits, totals)
    empty, of_empty = _best(asked, [[""]] * len(asked), totals)
    grown = _climb(asked, empty, of_empty, budget, edits, totals)
    return {RETRIEVED: retrieved, CLIMBED: climbed, GROWN: grown}


def _climb(
    prompts: Sequence[Dialogue], texts: list[str], scores: Array, budget: Budget, edits: "Edits", totals: Totals
) -> list[str]:
    """The texts, of these scores, after the rounds: in each the best change, where it is better."""
    for _ in each_logged(range(budget.rounds), "audit, rounds of the search", logger):
        changed = [[edits.change(text) for _ in range(budget.candidates)] for text in texts]
        better, new_scores = _best(prompts, changed, totals)
        texts = [new if up else old for new, old, up in zip(better, texts, new_scores > scores, strict=True)]
        scores = np.maximum(scores, new_scores)
    return texts


class Edits:
    """Changes of one word: one more, one less, or another one; half of them are drawn as often as training has them."""

    def __init__(self, training: Training, max_words: int, draw: random.Random):
        self.max_words, self.draw = max_words, draw
        self.words = list(training.counts)
        self.ends = list(accumulate(training.counts.values()))  # of each word among all that training has

    def change(self, text: str) -> str:
        """The text with one change; one without words gets a word."""
        words = text.split()
        kinds = ["replace", "delete"] if words else []
        kinds += ["insert"] if len(words) < self.max_words else []
        kind = self.draw.choice(kinds)
        place = self.draw.randrange(len(words) + (kind == "insert"))
        new = [] if kind == "delete" else [self._word()]
        words[place : place + (kind != "insert")] = new
        return " ".join(words)

    def _word(self) -> str:
        if self.draw.choice(("different", "often")) == "different":
            return self.draw.choice(self.words)
        return self.words[bisect.bisect_right(self.ends, self.draw.randrange(self.ends[-1]))]


def _best(prompts: Sequence[Dialogue], texts: Sequence[list[str]], totals: Totals) -> tuple[list[str], Array]:
    """For each prompt the text of its own list with the highest score, and that score."""
    pairs = [(prompt, text) for prompt, some in zip(prompts, texts, strict=True) for text in some]
    flat = totals([prompt for prompt, _ in pairs], [text for _, text in pairs])
    scores = np.nan_to_num(flat, nan=-np.inf).reshape(len(prompts), -1)
    return [some[i] for some, i in zip(texts, scores.argmax(axis=1).tolist(), strict=True)], scores.max(axis=1)
