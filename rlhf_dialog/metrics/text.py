"""Simple counts over texts."""

import random
from collections.abc import Iterable, Sequence


def ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    """The n-grams of the words of a text, in order."""
    words = text.lower().split()
    return list(zip(*(words[i:] for i in range(n)), strict=False))


def distinct_n(texts: Iterable[str], n: int) -> float:
    """Distinct n-grams divided by all n-grams of the texts together (Li et al. 2016, arXiv 1510.03055); 0 without any."""
    found = [gram for text in texts for gram in ngrams(text, n)]
    return len(set(found)) / len(found) if found else 0.0


def blocked_distinct_n(texts: Sequence[str], n: int, block: int = 100) -> list[float]:
    """distinct-n of fixed blocks of texts: it falls with the number of texts, so only blocks of equal size are comparable.

    A last, smaller block is left out unless it is the only one.
    """
    starts = range(0, max(len(texts) - block + 1, 1), block)
    return [distinct_n(texts[start : start + block], n) for start in starts]


def copied_from(turns: Sequence[str], response: str) -> float:
    """The share of the response's bigrams that also occur in at least one of the turns; 0 without bigrams."""
    found, there = ngrams(response, 2), {gram for turn in turns for gram in ngrams(turn, 2)}
    return sum(gram in there for gram in found) / len(found) if found else 0.0


def others(count: int, seed: int, step: int = 1) -> list[int]:
    """For each of `count` positions another one: `step` places further in a random cycle, drawn by `seed`, through all.

    A single position gets itself; steps 1 and -1 give different results from three positions on.
    """
    cycle = list(range(count))
    random.Random(seed).shuffle(cycle)
    following = [0] * count
    for place, position in enumerate(cycle):
        following[position] = cycle[(place + step) % count]
    return following
