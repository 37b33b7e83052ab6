"""The reply of the nearest training prompt: what looking up reaches where a model was trained."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.intervals import Array, Numbers

_WORD = re.compile(r"[\w']+")


def nearest_replies(prompts: Sequence[Dialogue], training: Sequence[Dialogue]) -> list[str]:
    """The reference of that training prompt whose last turn is nearest to each prompt's; ties: the first one.

    Near is the cosine of the words' counts times log(N / number of the N training prompts with the word) (Sparck Jones 1972).
    """
    index = _Index([_words(one) for one in training])
    return [training[index.nearest(_words(prompt))].reference or "" for prompt in prompts]


def _words(prompt: Dialogue) -> Counter[str]:
    return Counter(_WORD.findall(prompt.prompt_turns[-1].lower()))


class _Index:
    """Which of N texts have a word, with what weight (posting lists)."""

    def __init__(self, texts: Sequence[Counter[str]]):
        rows: dict[str, list[int]] = defaultdict(list)
        counts: dict[str, list[int]] = defaultdict(list)
        for row, words in enumerate(texts):
            for word, count in words.items():
                rows[word].append(row)
                counts[word].append(count)
        self.rareness = {word: float(np.log(len(texts) / len(entries))) for word, entries in rows.items()}
        self.rows: dict[str, Numbers] = {word: np.asarray(entries) for word, entries in rows.items()}
        self.weights: dict[str, Array] = {
            word: np.asarray(entries) * self.rareness[word] for word, entries in counts.items()
        }
        squares = np.zeros(len(texts))
        for word, entries in self.rows.items():
            squares[entries] += self.weights[word] ** 2
        self.lengths = np.sqrt(np.where(squares > 0, squares, 1.0))

    def nearest(self, words: Counter[str]) -> int:
        scores = np.zeros(len(self.lengths))
        for word, count in words.items():
            if word in self.rows:
                scores[self.rows[word]] += count * self.rareness[word] * self.weights[word]
        return int((scores / self.lengths).argmax())
