"""Second implementations of the metrics of replies, slow and plain."""

import math
import random
import re
from collections import Counter

from nltk.stem.porter import PorterStemmer

WORDS = [
    *("the", "cats", "cat", "sat", "sitting", "on", "a", "mat", "walking", "walked", "slowly", ",", "."),
    *("houses", "house"),
]


def text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))


def corpus(seed: int, size: int = 40) -> tuple[list[str], list[list[str]]]:
    rng = random.Random(seed)
    replies = [text(rng) for _ in range(size)]
    replies[3] = ""
    return replies, [[text(rng) for _ in range(rng.randint(1, 3))] for _ in range(size)]


def rouge_words(sentence: str) -> list[str]:
    stem = PorterStemmer().stem
    words = re.findall("[a-z0-9]+", sentence.lower())
    return [stem(word) if len(word) > 3 else word for word in words]


def lcs(a: list[str], b: list[str]) -> int:
    if not a or not b:
        return 0
    if a[-1] == b[-1]:
        return 1 + lcs(a[:-1], b[:-1])
    return max(lcs(a[:-1], b), lcs(a, b[:-1]))


def f_measure(hits: int, length: int, wanted: int) -> float:
    return 2 * hits / (length + wanted) if hits else 0.0


def slow_rouge(references: list[str], reply: str) -> dict[str, float]:
    best = {"rouge1": 0.0, "rougeLsum": 0.0}
    for reference in references:
        a, b = rouge_words(reply), rouge_words(reference)
        overlap = sum(min(a.count(word), b.count(word)) for word in set(a))
        best["rouge1"] = max(best["rouge1"], f_measure(overlap, len(a), len(b)))
        best["rougeLsum"] = max(best["rougeLsum"], f_measure(lcs(a, b), len(a), len(b)))
    return best


def slow_bleu(replies: list[str], references: list[list[str]]) -> float:
    """Papineni et al. 2002 on words split at spaces, with sacrebleu's default smoothing of empty orders."""
    matches, totals, length, wanted = [0] * 4, [0] * 4, 0, 0
    for reply, texts in zip(replies, references, strict=True):
        words = reply.split()
        length += len(words)
        wanted += min((abs(len(t.split()) - len(words)), len(t.split())) for t in texts)[1]
        for n in range(1, 5):
            grams = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
            allowed: Counter = Counter()
            for t in texts:
                other = t.split()
                allowed |= Counter(tuple(other[i : i + n]) for i in range(len(other) - n + 1))
            matches[n - 1] += sum((grams & allowed).values())
            totals[n - 1] += sum(grams.values())
    if not any(matches) or not all(totals):
        return 0.0
    halvings, log_sum = 1, 0.0
    for match, total in zip(matches, totals, strict=True):
        if not match:
            halvings *= 2
        log_sum += math.log(match / total if match else 1 / (halvings * total)) / 4
    return math.exp(min(0.0, 1 - wanted / length) + log_sum)


def slow_macro_f1(classes: list[int], acts: list[int]) -> float:
    scores = []
    for act in sorted(set(acts) | {c + 1 for c in classes}):
        both = sum(c + 1 == act == a for c, a in zip(classes, acts, strict=True))
        found, wanted = sum(c + 1 == act for c in classes), sum(a == act for a in acts)
        precision, recall = both / found if found else 0, both / wanted if wanted else 0
        scores.append(2 * precision * recall / (precision + recall) if both else 0.0)
    return sum(scores) / len(scores)
