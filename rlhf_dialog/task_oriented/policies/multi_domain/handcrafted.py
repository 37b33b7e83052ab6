"""The handcrafted policy for several domains: fixed rules on the observation, the line that a learner has to pass."""

from collections.abc import Iterator

from rlhf_dialog.task_oriented.domains import MultiDomain
from rlhf_dialog.task_oriented.policies.handcrafted import Rules
from rlhf_dialog.task_oriented.world.multi_domain.actions import action_names
from rlhf_dialog.task_oriented.world.multi_domain.observations import MultiLayout


class HandcraftedMulti(Rules):
    """In the domain of which the user spoke last: books what is wanted, answers, says that nothing fits, asks for what is
    needed, offers, or asks for the booking; then answers what is open elsewhere.

    An action that the mask forbids gives way to the next rule; the last one, `reqmore`, is always allowed.
    """

    def __init__(self, domain: MultiDomain):
        self.layout = MultiLayout(domain)
        self.index = {name: number for number, name in enumerate(action_names(domain))}

    def _wishes(self, row: list[float]) -> Iterator[str]:
        places = self.layout.places
        current = next((name for name, columns in places.items() if row[columns["current"]]), None)
        if current is not None:
            yield from self._domain_rules(current, places[current], row)
        yield from (f"{name}_{intent}" for name in places for intent in ("inform", "book"))
        yield "reqmore"

    def _domain_rules(self, name: str, columns: dict[str, int], row: list[float]) -> Iterator[str]:
        """The rules for the domain of which the user spoke last, the first one first."""
        yield from (f"{name}_book", f"{name}_inform", f"{name}_nooffer")
        if not row[columns["ready"]] or self.layout.domain.services[name].made_from:
            yield f"{name}_request"
        if not row[columns["offered"]]:
            yield f"{name}_recommend"
        yield f"{name}_request_booking"
