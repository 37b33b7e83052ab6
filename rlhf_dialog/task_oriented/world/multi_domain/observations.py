"""The observation with several domains: one vector of zeros and ones, whose places follow from the data."""

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.task_oriented.domains import DONTCARE, MultiDomain
from rlhf_dialog.task_oriented.domains.services import DomainService
from rlhf_dialog.task_oriented.world.multi_domain.actions import action_names
from rlhf_dialog.task_oriented.world.multi_domain.state import DialogueState, DomainState

FEW = 5
FLAGS = ("current", "spoken_of", "ready", "none", "one", "few", "many", "offered", "booked", "declined", "refused")


def _features(service: DomainService) -> list[str]:
    """The names of a domain's places: flags, then for each slot what is known of it."""
    constraints = [f"{kind} {slot}" for slot in service.constraints for kind in ("known", "dontcare")]
    booking = [f"booking {slot}" for slot in service.booking]
    return [*FLAGS, *constraints, *booking, *(f"asked {slot}" for slot in service.requests)]


class MultiLayout:
    """Where the parts of an observation lie. D = `size`.

    places: domain -> feature -> index. The features are `FLAGS` (current: the user spoke of it last; none, one, few, many: how
    many entities fit, once the needed slots are known), and for each slot `known`, `dontcare`, `booking` and `asked`
    last_action: slice, the system's last action; turn: index, the share of the turns that are over
    """

    def __init__(self, domain: MultiDomain):
        self.domain = domain
        self.names = action_names(domain)
        self.places: dict[str, dict[str, int]] = {}
        start = 0
        for name, service in domain.services.items():
            features = _features(service)
            self.places[name] = {feature: start + n for n, feature in enumerate(features)}
            start += len(features)
        self.last_action = slice(start, start + len(self.names))
        self.turn = self.last_action.stop
        self.size = self.turn + 1

    def encode(self, state: DialogueState, last_action: int | None, turn: float) -> NDArray[np.float32]:
        """The observation, (D,), each number from 0 to 1."""
        vector = np.zeros(self.size, dtype=np.float32)
        ones = [
            self.places[name][feature]
            for name, domain_state in state.domains.items()
            for feature in _true(domain_state, name == state.current)
            if feature in self.places[name]
        ]
        if last_action is not None:
            ones.append(self.last_action.start + last_action)
        vector[ones] = 1.0
        vector[self.turn] = turn
        return vector


def _true(domain_state: DomainState, is_current: bool) -> list[str]:
    true_names = ["spoken_of"]
    true_names += ["current"] if is_current else []
    if domain_state.is_ready:
        true_names.append("ready")
        number = len(domain_state.matches)
        true_names.append("none" if not number else "one" if number == 1 else "few" if number <= FEW else "many")
    flags = {"offered": domain_state.offered is not None, "booked": domain_state.is_booked}
    flags |= {"declined": domain_state.declined, "refused": domain_state.refused}
    true_names += [flag for flag, is_true in flags.items() if is_true]
    true_names += [f"known {slot}" for slot in domain_state.constraints]
    true_names += [f"dontcare {slot}" for slot, value in domain_state.constraints.items() if value == DONTCARE]
    true_names += [f"booking {slot}" for slot in domain_state.booking]
    return true_names + [f"asked {slot}" for slot in domain_state.asked]
