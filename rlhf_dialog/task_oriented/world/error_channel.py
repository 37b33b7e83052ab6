"""What is understood of the user's acts: an n-best list with confidences, as a speech recogniser and an NLU would give it."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from random import Random

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import DONTCARE, NAME, TYPE, Domain
from rlhf_dialog.task_oriented.world.acts import USER_INTENTS, Act

NBest = list[tuple[list[Act], float]]
NULL = Act("null")
TYPE_SHARE, SLOT_SHARE = 0.2, 0.3  # of the confusions; the rest are values
NEIGHBOURS, SOFTENING, ATTEMPTS = 6, 0.15, 25
LOWEST, HIGHEST = 0.01, 0.99
WITH_VALUE = ("inform", "affirm", "negate", "confirm", "reqalts")


@dataclass(frozen=True)
class Statistics:
    """DSTC2's: weights of list lengths 1.. (right, wrong) and of the true act's position 2.. in a wrong list; for each
    position, and for what is left, mean and deviation of the confidence."""

    right_lengths: tuple[float, ...]
    wrong_lengths: tuple[float, ...]
    positions: tuple[float, ...]
    right: tuple[tuple[float, float], ...]
    wrong: tuple[tuple[float, float], ...]


def _moments(means: Iterable[float], variances: Iterable[float]) -> tuple[tuple[float, float], ...]:
    return tuple((mean, variance**0.5) for mean, variance in zip(means, variances, strict=True))


SET_1 = Statistics(
    (0.264, 0.215, 0.138, 0.099, 0.08),
    (0.3, 0.068, 0.085, 0.072, 0.079),
    (0.179, 0.063, 0.027, 0.017),
    _moments((0.871, 0.103, 0.045, 0.032, 0.027, 0.049), (0.029, 0.01, 0.002, 0.001, 0.0, 0.001)),
    _moments((0.757, 0.179, 0.077, 0.048, 0.037, 0.065), (0.052, 0.014, 0.003, 0.001, 0.0, 0.002)),
)
SET_3 = Statistics(
    (0.147, 0.43, 0.212, 0.147, 0.048),
    (0.351, 0.388, 0.158, 0.071, 0.02),
    (0.116, 0.027, 0.007, 0.002),
    _moments((0.905, 0.101, 0.017, 0.008, 0.005, 0.01), (0.016, 0.013, 0.002, 0.001, 0.0, 0.001)),
    _moments((0.871, 0.164, 0.065, 0.043, 0.03, 0.054), (0.029, 0.02, 0.005, 0.002, 0.001, 0.003)),
)
BETWEEN_SETS = 0.225  # the benchmark uses set 1 at 15 % and set 3 at 30 %


class ErrorChannel:
    """Confuses a user's turn with probability `error_rate`; without errors, the turn itself with confidence 1.

    Raises UserError for an error rate outside of 0 to 1.
    """

    def __init__(self, domain: Domain, error_rate: float, rng: Random):
        if not 0 <= error_rate <= 1:
            raise UserError(f"error_rate is {error_rate}; give a probability from 0 to 1, such as 0.15")
        self.domain, self.error_rate, self.rng = domain, error_rate, rng
        self.kept = () if TYPE in domain.constraints else (TYPE,)  # slots that are never confused
        self.statistics = SET_1 if error_rate < BETWEEN_SETS else SET_3

    def __call__(self, acts: list[Act]) -> NBest:
        """Hypotheses with confidences that sum to 1, `null` among them where something is left."""
        if not self.error_rate:
            return [(acts, 1.0)]
        rng, statistics = self.rng, self.statistics
        wrong = rng.random() < self.error_rate
        length = _draw(rng, statistics.wrong_lengths if wrong else statistics.right_lengths) + 1
        place = _draw(rng, statistics.positions) + 1 if wrong else 0
        turns: list[list[Act]] = []
        for position in range(length):
            turns.append(acts if position == place else self._another(acts, turns))
        moments = statistics.wrong if wrong else statistics.right
        scores = [min(max(rng.gauss(mean, deviation), LOWEST), HIGHEST) for mean, deviation in moments]
        total = sum(scores)
        listed = [(turn, score / total) for turn, score in zip(turns, scores, strict=False)]
        return [*listed, ([NULL], sum(scores[len(turns) :]) / total)]

    def _another(self, acts: list[Act], listed: list[list[Act]]) -> list[Act]:
        """A confusion that is neither the turn itself nor in the list; `null` after `ATTEMPTS` attempts."""
        for _ in range(ATTEMPTS):
            turn = self._confuse(acts)
            if turn != acts and turn not in listed:
                return turn
        return [NULL]

    def _confuse(self, acts: list[Act]) -> list[Act]:
        chance = self.rng.random()
        places = [number for number, act in enumerate(acts) if act.slot and act.slot not in self.kept]
        if chance < TYPE_SHARE or not places:
            return self._other_type(acts[0].intent)
        if chance < TYPE_SHARE + SLOT_SHARE:
            return self._other_slots(acts)
        number = self.rng.choice(places)
        act = acts[number]
        values = self.domain.values(act.slot)
        if not act.value or not values:
            return acts
        value = self._neighbour(act.value, values if act.slot == NAME else (*values, DONTCARE))
        return [*acts[:number], Act(act.intent, act.slot, value), *acts[number + 1 :]]

    def _other_type(self, intent: str) -> list[Act]:
        """Another intent, with a random slot and value where it has them; a goodbye is suppressed."""
        intent = self._neighbour(intent, USER_INTENTS)
        slot = self.rng.choice(self.domain.requestable)
        if intent == "bye":
            return [NULL]
        if intent == "request":
            return [Act(intent, slot)]
        if intent not in WITH_VALUE:
            return [Act(intent)]
        value = self._any_value(slot)
        if intent in ("inform", "confirm"):
            return [Act(intent, slot, value)] if value else [NULL]
        return [Act(intent), Act("inform", slot, value)] if value else [Act(intent)]

    def _other_slots(self, acts: list[Act]) -> list[Act]:
        """Every slot another one, with a random value of it; what has no value is lost."""
        turn = []
        for act in acts:
            if not act.slot or act.slot in self.kept:
                turn.append(act)
                continue
            slot = self._neighbour(act.slot, self.domain.requestable)
            value = self._any_value(slot) if act.value else ""
            if value or not act.value:
                turn.append(Act(act.intent, slot, value))
        return turn or [NULL]

    def _any_value(self, slot: str) -> str:
        values = self.domain.values(slot)
        return self.rng.choice((*values, DONTCARE)) if values else ""

    def _neighbour(self, word: str, words: tuple[str, ...]) -> str:
        near, weights = neighbours(word, words)
        return self.rng.choices(near, cum_weights=weights)[0] if near else word


def _draw(rng: Random, weights: tuple[float, ...]) -> int:
    return rng.choices(range(len(weights)), weights)[0]


@lru_cache(maxsize=10_000)
def neighbours(word: str, words: tuple[str, ...]) -> tuple[list[str], list[float]]:
    """The six other words with the smallest Levenshtein distance, and their cumulative weights.

    A weight is the inverse of the distance, as a share, plus 0.15.
    """
    near = sorted((levenshtein(word, other), i) for i, other in enumerate(words) if other != word)[:NEIGHBOURS]
    total = sum(1 / distance for distance, _ in near)
    return [words[n] for _, n in near], list(accumulate(1 / distance / total + SOFTENING for distance, _ in near))


def levenshtein(source: str, target: str) -> int:
    """The smallest number of letters to insert, delete or replace.

    >>> levenshtein("inform", "confirm")
    3
    """
    row = list(range(len(source) + 1))
    for number, letter in enumerate(target, 1):
        previous, row[0] = row[0], number
        for place, mine in enumerate(source, 1):
            cost = previous if letter == mine else 1 + min(previous, row[place], row[place - 1])
            previous, row[place] = row[place], cost
    return row[-1]
