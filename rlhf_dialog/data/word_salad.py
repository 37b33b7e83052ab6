"""Replies with the right words in the wrong order or place: shuffled, mixed from turns, lists, with words exchanged."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import chain, zip_longest

NUM_RARE = 8


def shuffle_words(text: str, draw: random.Random) -> str:
    """The words in an order that is drawn, which may be the same one."""
    words = text.split()
    draw.shuffle(words)
    return " ".join(words)


def rarest(turns: Sequence[str], counts: Counter[str]) -> str:
    """The NUM_RARE words of the turns that have the smallest counts, each once; marks do not count as words."""
    words = dict.fromkeys(word for turn in turns for word in turn.split() if any(map(str.isalnum, word)))
    return " ".join(sorted(words, key=lambda word: counts[word])[:NUM_RARE])


def halves(turns: Sequence[str]) -> str | None:
    """The first half of the last turn and the second half of the one before it; None for fewer than two turns."""
    if len(turns) < 2:
        return None
    last, before = turns[-1].split(), turns[-2].split()
    return " ".join([*last[: (len(last) + 1) // 2], *before[len(before) // 2 :]])


def alternating(turns: Sequence[str]) -> str | None:
    """The words of the last turn and of the one before it in turn; None for fewer than two turns."""
    if len(turns) < 2:
        return None
    return " ".join(filter(None, chain.from_iterable(zip_longest(turns[-1].split(), turns[-2].split()))))


def exchange_words(text: str, words: Sequence[str], draw: random.Random) -> str:
    """The text with a third of its words, at least one, replaced by drawn ones."""
    old = text.split()
    for place in draw.sample(range(len(old)), min(len(old), 1 + len(old) // 3)):
        old[place] = draw.choice(words)
    return " ".join(old)


def salads(reply: str, turns: Sequence[str], counts: Counter[str], draw: random.Random) -> tuple[str, str]:
    """The shuffled reply, and one of: a mixture of turns, the rarest words, the reply with exchanged words.

    `counts`: how often the training replies have each word. Either is empty where it would be the reply itself.
    """
    words = [word for turn in turns for word in turn.split()] or list(counts)
    kinds = [halves(turns), alternating(turns), rarest(turns, counts), exchange_words(reply, words, draw)]
    kinds.append(exchange_words(reply, list(counts), draw))
    mixed = draw.choice([kind for kind in kinds if kind])
    first = shuffle_words(reply, draw)
    return tuple("" if text.split() == reply.split() else text for text in (first, mixed))  # type: ignore[return-value]
