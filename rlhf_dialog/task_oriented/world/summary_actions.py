"""The policy's choices: a few summary actions, which of them make sense, and the acts that each one becomes."""

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.task_oriented.domains import DONTCARE, NAME, UNKNOWN, Domain
from rlhf_dialog.task_oriented.domains.domain import Entity
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.summary import Summary
from rlhf_dialog.task_oriented.world.tracker import NOTHING, Belief

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
        self.index = {name: number for number, name in enumerate(self.names)}
        self.reset()

    def reset(self) -> None:
        """Begin a dialogue."""
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
            return self._about(kind, slot, summary)
        if name == "inform":
            return self._inform(belief, summary, again=True)
        if name == "inform_alternatives":
            self._alternatives_wanted = False
            return self._inform(belief, summary, again=False)
        if name == "inform_byname":
            return self._inform_requested(self._find_name(belief) or belief.offered, summary)
        return [Act(name)] if name in ("bye", "reqmore") else NULL

    def _about(self, kind: str, slot: str, summary: Summary) -> list[Act]:
        if kind == "request":
            return [Act("request", slot)]
        values = [value for value, _ in summary.ranked[slot][: 1 if kind == "confirm" else 2]]
        return [Act(kind, slot, value) for value in values] if len(values) == (1 if kind == "confirm" else 2) else NULL

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

    def _inform_requested(self, name: str, summary: Summary) -> list[Act]:
        entity = self.domain.entity(name)
        if entity is None:
            return [Act("inform", NAME, NOTHING)] if name else NULL
        slots = [slot for slot in summary.requested if slot != NAME][:MAX_INFORMED]
        return [Act("inform", NAME, name), *(Act("inform", slot, entity[slot]) for slot in slots)]


def _echo_accepted(summary: Summary, dontcare: bool) -> list[Act]:
    """The accepted values, so that the user can correct them."""
    pairs = [(slot, value) for slot, value in summary.accepted.items() if dontcare or value != DONTCARE]
    return [Act("inform", slot, value) for slot, value in pairs[:MAX_INFORMED]]
