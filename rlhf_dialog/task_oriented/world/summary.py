"""What actions, masks and observations need of a belief, computed once a turn."""

from dataclasses import dataclass

from rlhf_dialog.task_oriented.domains import DONTCARE, Domain
from rlhf_dialog.task_oriented.world.tracker import METHODS, Belief

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
