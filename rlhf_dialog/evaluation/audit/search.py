"""A search for replies that a reward pays more: the best of many training replies, climbing from these and from no word."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.audit.probes import Training, cut
from rlhf_dialog.evaluation.intervals import Array

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


@dataclass(frozen=True)
class SearchResult:
    """The best text for each prompt: of the training replies, after the rounds from these, and after those from no word."""

    retrieved: list[str]
    climbed: list[str]
    grown: list[str]


def search(
    prompts: Sequence[Dialogue], training: Training, budget: Budget, totals: Totals, max_words: int, seed: int
) -> SearchResult:
    """The best replies to the first `budget.prompts` prompts, of at most `max_words` words. Raises what `totals` raises."""
    draw, asked = random.Random(seed), prompts[: budget.prompts]
    texts = pool(training, budget.replies, max_words, draw)
    retrieved, scores = _best(asked, [texts] * len(asked), totals)
    edits = Edits(training, max_words, draw)
    climbed = _climb(asked, retrieved, scores, budget, edits, totals)
    empty, of_empty = _best(asked, [[""]] * len(asked), totals)
    return SearchResult(retrieved, climbed, _climb(asked, empty, of_empty, budget, edits, totals))


def _climb(
    prompts: Sequence[Dialogue], texts: list[str], scores: Array, budget: Budget, edits: "Edits", totals: Totals
) -> list[str]:
    """The texts, of these scores, after the rounds: in each the best change, where it is better."""
    for _ in range(budget.rounds):
        changed = [[edits.change(text) for _ in range(budget.candidates)] for text in texts]
        better, new_scores = _best(prompts, changed, totals)
        texts = [new if up else old for new, old, up in zip(better, texts, new_scores > scores, strict=True)]
        scores = np.maximum(scores, new_scores)
    return texts


def pool(training: Training, count: int, max_words: int, draw: random.Random) -> list[str]:
    """At most `count` different training replies."""
    return [cut(text, max_words) for text in draw.sample(training.different, min(count, len(training.different)))]


class Edits:
    """Changes of one word: one more, one less, or another one; half of them are drawn as often as training has them."""

    def __init__(self, training: Training, max_words: int, draw: random.Random):
        self.max_words, self.draw = max_words, draw
        self.words = list(training.counts)
        self.often = list(training.counts.elements())

    def change(self, text: str) -> str:
        """The text with one change; one without words gets a word."""
        words = text.split()
        kinds = ["replace", "delete"] if words else []
        kinds += ["insert"] if len(words) < self.max_words else []
        kind = self.draw.choice(kinds)
        place = self.draw.randrange(len(words) + (kind == "insert"))
        new = [] if kind == "delete" else [self.draw.choice(self.draw.choice((self.words, self.often)))]
        words[place : place + (kind != "insert")] = new
        return " ".join(words)


def _best(prompts: Sequence[Dialogue], texts: Sequence[list[str]], totals: Totals) -> tuple[list[str], Array]:
    """For each prompt the text of its own list with the highest score, and that score."""
    pairs = [(prompt, text) for prompt, some in zip(prompts, texts, strict=True) for text in some]
    flat = totals([prompt for prompt, _ in pairs], [text for _, text in pairs])
    scores = np.nan_to_num(flat, nan=-np.inf).reshape(len(prompts), -1)
    return [some[i] for some, i in zip(texts, scores.argmax(axis=1).tolist(), strict=True)], scores.max(axis=1)
