"""Who contradicts the others? What a person said of answers is compared with what everybody else's feedback predicts of them.

Ridge regression on the words and the length of answers, fitted on the feedback of all others, scores the answers of one person.
The person's agreement is the concordance of these scores with the person's own labels, as the gate counts it: of a liked and a
disliked answer of one kind, how often does the liked one score higher? An edit or a choice is a comparison by itself. The
standard error is that of independent dialogues (Obuchowski 1997), or that of answers without any order where that is larger.

Whoever agrees in less than half of the comparisons, with the confidence of the settings over all people together, contradicts the
others, and is left out, from training and from the gate. Nobody is left out
- where fewer than four people can be judged;
- where the rest do not agree with the others in more than half (confidence 90 %): of two camps, each contradicts the other;
- where it would be more than a third of those who can be judged.

Held-out feedback takes no part, and nothing is kept from night to night.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np

from rlhf_dialog.evaluation.intervals import Array
from rlhf_dialog.feedback.store.examples import Answer, Example, Examples, capped_weights, measurable
from rlhf_dialog.feedback.store.settings import BotSettings
from rlhf_dialog.feedback.store.store import SAMPLES

# a sign of a script without spaces, a word, a mark
TOKEN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+|[^\w\s]")
NUM_WORDS = 400  # the most frequent ones, in at least RARE answers
RARE = 3
RIDGE = 30.0
ROUNDED = 9  # decimals of a score: equal answers have equal ones
MIN_EVENTS = 10  # of a person who can be left out
MIN_PEOPLE = 4  # of whom there are as many events
LARGEST_SHARE = Fraction(1, 3)  # of them that may be left out
NEWEST = 1000  # events of a person that are compared
PAIR = "pair"
LENGTHS = 8  # classes of length
AGREED = 0.9  # confidence that the rest agree
SHOWN = 5  # people in a line of a report
Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Agreement:
    """How far a person agrees with what the others' feedback predicts: concordance from 0 to 1, 1/2 by chance."""

    person: str
    value: float
    standard_error: float
    num_events: int

    def __str__(self) -> str:
        low, high = (min(1.0, max(0.0, self.value + sign * Z * self.standard_error)) for sign in (-1, 1))
        return f"{self.person} agrees in {self.value:.0%} of the comparisons [{100 * low:.0f}, {100 * high:.0f}]"


@dataclass(frozen=True)
class Trust:
    """Everybody with something to compare, and those who contradict the others; `why_used`: why they are not left out."""

    people: tuple[Agreement, ...] = ()
    contradicting: tuple[Agreement, ...] = ()
    why_used: str | None = None

    @property
    def left_out(self) -> frozenset[str]:
        """The people whose feedback is not used."""
        return frozenset() if self.why_used else frozenset(one.person for one in self.contradicting)

    def lines(self) -> list[str]:
        """What `learn` and `status` say of it; nothing where nobody contradicts the others."""
        if not self.contradicting:
            return []
        count = len(self.contradicting)
        who = f"{count} {'person contradicts' if count == 1 else 'people contradict'} the others"
        what = f"used all the same: {self.why_used}" if self.why_used else "not used in training and gate"
        shown = [*map(str, self.contradicting[:SHOWN]), *(["..."] if count > SHOWN else [])]
        return [f"{who}, and {'is' if count == 1 else 'are'} {what} ({'; '.join(shown)})"]


def trust_in(examples: Examples, settings: BotSettings) -> Trust:
    """Who contradicts the others in what may be trained on."""
    if settings.contradiction_confidence is None:
        return Trust()
    kept, _ = measurable([one for one in examples.all if not one.heldout and one.person != SAMPLES], settings)
    return judged(agreements(kept, settings.person_cap), settings.contradiction_confidence)


def judged(people: tuple[Agreement, ...], confidence: float) -> Trust:
    """The rule, on the agreement of each person."""
    able = [one for one in people if one.num_events >= MIN_EVENTS]
    z = NormalDist().inv_cdf(1 - (1 - confidence) / max(len(able), 1))  # Bonferroni
    contradicting = tuple(one for one in able if one.value + z * one.standard_error < 0.5)
    if len(able) < MIN_PEOPLE:
        why = f"{len(able)} people have said enough to be compared, and {MIN_PEOPLE} are needed"
    elif not _agree([one for one in people if one not in contradicting]):
        why = "the others do not agree with each other"
    elif len(contradicting) > LARGEST_SHARE * len(able):
        why = f"that would be more than a third of the {len(able)} who have said enough"
    else:
        return Trust(people, contradicting)
    return Trust(people, contradicting, why if contradicting else None)


def _agree(people: Sequence[Agreement]) -> bool:
    """Whether these agree with what others say in more than half of all their comparisons."""
    counts = np.asarray([one.num_events for one in people], dtype=np.float64)
    values = np.asarray([one.value for one in people])
    errors = np.asarray([one.standard_error for one in people])
    lowest = NormalDist().inv_cdf(AGREED) * math.sqrt(float((counts * errors) @ (counts * errors)))
    return float(counts @ (values - 0.5)) > lowest


def trusted(examples: Examples, trust: Trust) -> Examples:
    """The examples without those of people who are left out."""
    answers = [one for one in examples.answers if one.person not in trust.left_out]
    pairs = [one for one in examples.pairs if one.person not in trust.left_out]
    left = len(examples) - len(answers) - len(pairs)
    reason = "of people who contradict the others (contradiction_confidence)"
    return replace(
        examples, answers=answers, pairs=pairs, left_out={**examples.left_out, **({reason: left} if left else {})}
    )


def agreements(examples: Sequence[Example], person_cap: float) -> tuple[Agreement, ...]:
    """The agreement of each person with all others, the lowest first, whose rows weigh no more than the cap allows."""
    some = _newest_of_each(examples)
    weights = capped_weights({person: len(judged_answers) for person, judged_answers in some.items()}, person_cap)
    words = _words([one for judged_answers in some.values() for one in judged_answers])
    moments = {
        person: float(weights[person]) * _moments(judged_answers, words) for person, judged_answers in some.items()
    }
    whole = np.sum(list(moments.values()), axis=0)
    found = [
        Agreement(person, *known, len(judged_answers))
        for person, judged_answers in some.items()
        if (known := concordance(judged_answers, _scores(judged_answers, words, whole - moments[person])))
    ]
    return tuple(sorted(found, key=lambda one: (one.value, one.person)))


def _newest_of_each(examples: Sequence[Example]) -> dict[str, list[Example]]:
    found: dict[str, list[Example]] = defaultdict(list)
    for one in sorted(examples, key=lambda one: one.event):
        found[one.person].append(one)
    return {person: own[-NEWEST:] for person, own in sorted(found.items())}


# -- the regression


def _words(examples: Sequence[Example]) -> dict[str, int]:
    """The column of each word that is frequent enough."""
    counts = Counter(word for one in examples for text in _texts(one) for word in set(_tokens(text)))
    frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:NUM_WORDS]
    return {word: column for column, (word, count) in enumerate(frequent) if count >= RARE}


def _texts(one: Example) -> tuple[str, ...]:
    return (one.response,) if isinstance(one, Answer) else (one.chosen, one.rejected)


def _tokens(text: str) -> list[str]:
    return TOKEN.findall(text.lower())


def _features(text: str, words: dict[str, int]) -> Array:
    """Of an answer (D,): which words it has, its length in words (binary logarithm), and the class of that."""
    tokens = _tokens(text)
    found = np.zeros(len(words) + LENGTHS + 1)
    found[[words[one] for one in set(tokens) if one in words]] = 1
    length = math.log2(len(tokens) + 1)
    found[len(words) + min(LENGTHS - 1, int(length))] = 1
    found[-1] = length - 3
    return found


def _differences(examples: Sequence[Example], words: dict[str, int]) -> Array:
    """The features of each answer, and of each pair the better answer's less the other's (n, D)."""
    rows = [[_features(text, words) for text in _texts(one)] for one in examples]
    return np.stack([row[0] if len(row) == 1 else row[0] - row[1] for row in rows])


def _moments(examples: Sequence[Example], words: dict[str, int]) -> Array:
    """X'X and X'y (D + 1, D + 2) of rows that end with a 1, with labels of 1 and -1; a pair has no 1, and the label 1."""
    is_answer = np.asarray([[isinstance(one, Answer)] for one in examples], dtype=np.float64)
    labels = np.asarray([[-1.0 if isinstance(one, Answer) and not one.liked else 1.0] for one in examples])
    rows = np.hstack([_differences(examples, words), is_answer])
    found: Array = rows.T @ np.hstack([rows, labels])
    return found


def _scores(examples: Sequence[Example], words: dict[str, int], moments: Array) -> Array:
    """What the regression of these moments gives each answer, and each pair's better one above the other (n,)."""
    penalty = np.full(len(moments), RIDGE)
    penalty[-1] = 1e-6  # the constant is free
    weights = np.linalg.solve(moments[:, :-1] + np.diag(penalty), moments[:, -1])
    scores: Array = (_differences(examples, words) @ weights[:-1]).round(ROUNDED)
    return scores


# -- the concordance


def concordance(examples: Sequence[Example], scores: Array) -> tuple[float, float] | None:
    """The concordance of scores (n,) with labels, and its standard error; None where there is nothing to compare.

    Kinds are added up as in the gate. The error is the larger of that by dialogue and that of answers without any order.
    """
    kinds = np.asarray([one.kind if isinstance(one, Answer) else PAIR for one in examples])
    liked = np.asarray([isinstance(one, Answer) and one.liked for one in examples])
    influence, parts = np.zeros(len(examples)), []
    for kind in np.unique(kinds):
        own = np.flatnonzero(kinds == kind)
        part = _of_pairs(scores[own]) if kind == PAIR else _of_answers(scores[own], liked[own])
        if part is not None:
            influence[own] = part.worth * part.influence
            parts.append(part)
    if not parts:
        return None
    worth = sum(part.worth for part in parts)
    dialogues = np.unique([one.dialogue for one in examples], return_inverse=True)[1]
    by_dialogue = np.bincount(dialogues, influence / worth)
    by_chance = sum((part.worth / worth) ** 2 * part.variance for part in parts)
    value = sum(part.worth * part.value for part in parts) / worth
    return value, math.sqrt(max(float((by_dialogue**2).sum()), by_chance))


@dataclass(frozen=True)
class Part:
    """The concordance of one kind. `influence` (n,): of each row on it; `variance`: that of rows without any order."""

    value: float
    worth: float
    influence: Array
    variance: float


def _of_answers(scores: Array, liked: Any) -> Part | None:
    """Mann & Whitney's; its variance without order is (n + 1) / (12 L D)."""
    up, down = scores[liked], scores[~liked]
    if not len(up) or not len(down):
        return None
    hits = (np.sign(up[:, None] - down) + 1) / 2
    influence, value, count = np.zeros(len(scores)), float(hits.mean()), len(up) * len(down)
    influence[liked] = (hits.mean(axis=1) - value) / len(up)
    influence[~liked] = (hits.mean(axis=0) - value) / len(down)
    return Part(value, 4 * count / len(scores), influence, (len(scores) + 1) / (12 * count))


def _of_pairs(scores: Array) -> Part:
    hits = (np.sign(scores) + 1) / 2
    value, count = float(hits.mean()), len(scores)
    return Part(value, count, (hits - value) / count, 1 / (4 * count))
