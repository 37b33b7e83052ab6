"""What actions, masks and observations need of a belief, computed once a turn; the summary actions and the observation."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.task_oriented.domains import DONTCARE, NAME, UNKNOWN, Domain
from rlhf_dialog.task_oriented.domains.domain import Entity
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.tracker import DISCOURSE_ACTS, METHODS, NOTHING, Belief

REQUESTED_ABOVE, SURE_ABOVE = 0.5, 0.5
MANY = 4
Counts = tuple[bool, bool, bool, bool, bool]


@dataclass
class Summary:
    """ranked: for each constraint slot its values with probabilities, best first
    accepted: slot -> value that is believed, in the ontology's order
    method, discourse_act: the most probable ones; `byconstraints` and `none` where none is sure
    counts: for the 1, 2, ... most certain values of `accepted`: 0, 1, 2 to 4, more entities fit, differ in an open slot
    """

    ranked: dict[str, list[tuple[str, float]]]
    accepted: dict[str, str]
    method: str
    discourse_act: str
    requested: list[str]
    counts: list[Counts]

    @property
    def distinguishable(self) -> bool:
        """Whether a constraint that is not accepted could tell apart the entities that fit."""
        return self.counts[-1][4]


def summarise(domain: Domain, belief: Belief) -> Summary:
    """Read the belief: values are accepted above `accepted_above`, when `none` is less probable."""
    ranked = {slot: belief.ranked_values(slot) for slot in domain.constraints}
    accepted: dict[str, tuple[str, float]] = {}
    for slot, values in domain.constraints.items():
        if ranked[slot]:
            value, score = ranked[slot][0]
            if score > accepted_above(len(values)) and score >= belief.none(slot):
                accepted[slot] = (value, score)
    askable = dict.fromkeys((*domain.requestable, *domain.constraints))  # a user may want any constraint confirmed
    requested = [slot for slot in askable if belief.requested.get(slot, 0.0) > REQUESTED_ABOVE]
    return Summary(
        ranked,
        {slot: value for slot, (value, _) in accepted.items()},
        _method(belief),
        max(belief.discourse_act, key=lambda act: belief.discourse_act[act], default="none"),
        requested,
        _counts(domain, accepted),
    )


def accepted_above(num_values: int) -> float:
    """The probability above which a value of a slot is accepted: 1 / (number of values - 0.1), that of two for one value."""
    return 1 / (max(num_values, 2) - 0.1)


def _method(belief: Belief) -> str:
    top = max(METHODS[1:], key=lambda name: belief.method.get(name, 0.0))
    score = belief.method.get(top, 0.0)
    unsure = score < 1.0 - sum(belief.method.values()) or (top in ("finished", "restart") and score <= SURE_ABOVE)
    return "byconstraints" if unsure else top


def _counts(domain: Domain, accepted: dict[str, tuple[str, float]]) -> list[Counts]:
    certain = sorted(accepted.items(), key=lambda item: -item[1][1])
    counts, taken = [], {}
    for slot, (value, _) in certain:
        taken[slot] = value
        counts.append(_count(domain, taken))
    last = counts[-1] if counts else _count(domain, {})
    return counts + [last] * (len(domain.constraints) - len(counts))


def _count(domain: Domain, constraints: dict[str, str]) -> Counts:
    entities = domain.matching(constraints)
    number = len(entities)
    free = [slot for slot in domain.constraints if constraints.get(slot) != DONTCARE]
    distinguishable = number > 1 and any(len({entity[slot] for entity in entities}) > 1 for slot in free)
    return number == 0, number == 1, 2 <= number <= MANY, number > MANY, distinguishable


ACCEPTED_TO_INFORM = 4
MAX_INFORMED = 5
NAMED_ABOVE = 0.8
OF_SLOTS = ("request", "confirm", "select")
GLOBAL = ("inform", "inform_byname", "inform_alternatives", "bye", "repeat", "reqmore", "restart")
NULL = [Act("null")]


def action_names(domain: Domain) -> tuple[str, ...]:
    """`request_`, `confirm_` and `select_` for each constraint slot, then the global ones."""
    of_slots = (f"{kind}_{slot}" for slot in domain.constraints for kind in OF_SLOTS)
    return (*of_slots, *GLOBAL)


class SummaryActions:
    """Masks and acts for one dialogue at a time; `reset` begins another one. A = len(names)."""

    def __init__(self, domain: Domain):
        self.domain = domain
        self.names = action_names(domain)
        self.reset()

    def reset(self) -> None:
        self._alternatives_wanted = False

    def mask(self, belief: Belief, summary: Summary) -> NDArray[np.bool_]:
        """(A,), True where the action makes sense now. `repeat` and `restart` never do: users do not understand them."""
        if summary.method == "byalternatives" and summary.discourse_act not in ("thankyou", "ack"):
            self._alternatives_wanted = True
        allowed = []
        for slot in self.domain.constraints:
            num_values = len(summary.ranked[slot])
            allowed += [True, num_values > 0, num_values > 1]
        enough = len(summary.accepted) >= ACCEPTED_TO_INFORM or not summary.distinguishable
        offered = bool(belief.offered)
        allowed += [
            summary.method == "byconstraints" and enough,
            summary.method == "byname" and (offered or self._find_name(belief) != ""),
            self._alternatives_wanted and offered,
            summary.method == "finished",
            False,
            offered,
            False,
        ]
        return np.array(allowed, dtype=np.bool_)

    def acts(self, name: str, belief: Belief, summary: Summary) -> list[Act]:
        """The turn that an action becomes; `null`, which the user does not understand, where it cannot become one."""
        kind, _, slot = name.partition("_")
        if kind in OF_SLOTS and slot in self.domain.constraints:
            if kind == "request":
                return [Act("request", slot)]
            number = 1 if kind == "confirm" else 2
            values = [value for value, _ in summary.ranked[slot][:number]]
            return [Act(kind, slot, value) for value in values] if len(values) == number else NULL
        if name == "inform":
            return self._inform(belief, summary, again=True)
        if name == "inform_alternatives":
            self._alternatives_wanted = False
            return self._inform(belief, summary, again=False)
        if name == "inform_byname":
            venue = self._find_name(belief) or belief.offered
            entity = self.domain.entity(venue)
            if entity is None:
                return [Act("inform", NAME, NOTHING)] if venue else NULL
            slots = [slot for slot in summary.requested if slot != NAME][:MAX_INFORMED]
            return [Act("inform", NAME, venue), *(Act("inform", slot, entity[slot]) for slot in slots)]
        return [Act(name)] if name in ("bye", "reqmore") else NULL

    def _find_name(self, belief: Belief) -> str:
        """The name that the user gave, where that is believed."""
        return next((name for name, score in belief.ranked_values(NAME)[:1] if score >= NAMED_ABOVE), "")

    def _inform(self, belief: Belief, summary: Summary, again: bool) -> list[Act]:
        """Offer an entity that fits what is accepted: the last one `again` if it fits, or one that was not offered."""
        entities = self.domain.matching(summary.accepted)
        if not entities:
            return [Act("inform", NAME, NOTHING), *_echo_accepted(summary, dontcare=False)]
        if again:
            return self._offer(next((e for e in entities if e[NAME] == belief.offered), entities[0]), summary)
        alternatives = [entity for entity in entities if entity[NAME] not in belief.offers]
        if alternatives:
            return self._offer(alternatives[0], summary)
        only = [Act("except", NAME, entity[NAME]) for entity in entities]
        return [Act("inform", NAME, NOTHING), *only, *_echo_accepted(summary, dontcare=True)]

    def _offer(self, entity: Entity, summary: Summary) -> list[Act]:
        slots = [slot for slot in summary.accepted if entity[slot] != UNKNOWN][:MAX_INFORMED]
        return [Act("inform", NAME, entity[NAME]), *(Act("inform", slot, entity[slot]) for slot in slots)]


def _echo_accepted(summary: Summary, dontcare: bool) -> list[Act]:
    """The accepted values, so that the user can correct them."""
    pairs = [(slot, value) for slot, value in summary.accepted.items() if dontcare or value != DONTCARE]
    return [Act("inform", slot, value) for slot, value in pairs[:MAX_INFORMED]]


NUM_COUNTS = 5


class Layout:
    """Where the parts of an observation lie, and how a belief becomes one. D = `size`.

    slots: constraint slot -> slice of its values in the ontology's order, then `dontcare`, then `none`
    method, discourse_act, requested: slices; requested has the domain's requestable slots in their order
    offer_happened, nothing_found: indices; counts: slice, five numbers (`Summary.counts`) for each constraint slot
    """

    def __init__(self, domain: Domain):
        self.domain, start = domain, 0
        self.slots: dict[str, slice] = {}
        self._places: dict[str, dict[str, int]] = {}
        for slot, values in domain.constraints.items():
            self.slots[slot] = slice(start, start + len(values) + 2)
            self._places[slot] = {value: start + n for n, value in enumerate((*values, DONTCARE))}
            start = self.slots[slot].stop
        self.method = slice(start, start + len(METHODS))
        self.discourse_act = slice(self.method.stop, self.method.stop + len(DISCOURSE_ACTS))
        self.requested = slice(self.discourse_act.stop, self.discourse_act.stop + len(domain.requestable))
        self.offer_happened, self.nothing_found = self.requested.stop, self.requested.stop + 1
        self.counts = slice(self.nothing_found + 1, self.nothing_found + 1 + NUM_COUNTS * len(domain.constraints))
        self.size = self.counts.stop
        self._none = [part.stop - 1 for part in self.slots.values()]

    def encode(self, belief: Belief, summary: Summary) -> NDArray[np.float32]:
        """The observation, (D,), each number from 0 to 1."""
        vector = np.zeros(self.size, dtype=np.float32)
        for (slot, places), none in zip(self._places.items(), self._none, strict=True):
            left = 1.0
            for value, score in summary.ranked[slot]:
                left -= score
                if value in places:
                    vector[places[value]] = min(score, 1.0)
            vector[none] = max(left, 0.0)
        methods = [belief.method.get(name, 0.0) for name in METHODS]
        methods[0] = max(0.0, 1.0 - sum(methods))
        vector[self.method] = methods
        vector[self.discourse_act] = [belief.discourse_act.get(name, 0.0) for name in DISCOURSE_ACTS]
        vector[self.requested] = [belief.requested.get(slot, 0.0) for slot in self.domain.requestable]
        vector[self.offer_happened], vector[self.nothing_found] = belief.offer_happened, belief.nothing_found
        vector[self.counts] = [number for counts in summary.counts for number in counts]
        return np.clip(vector, 0.0, 1.0, out=vector)
