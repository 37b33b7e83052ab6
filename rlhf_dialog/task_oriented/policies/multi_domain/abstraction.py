"""Which slots of different domains mean the same to a policy: those of equal rank by entropy (Gasic et al. 2015).

The abstraction is JSON: for each domain its slots, and the name that each of them shares with its counterparts elsewhere.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import read_json
from rlhf_dialog.task_oriented.domains import UNKNOWN, MultiDomain
from rlhf_dialog.task_oriented.domains.domain import check_known
from rlhf_dialog.task_oriented.domains.services import DomainService
from rlhf_dialog.task_oriented.policies.base import Features
from rlhf_dialog.task_oriented.policies.multi_domain.views import Rows, View
from rlhf_dialog.task_oriented.world.multi_domain.user import BOOK

Abstraction = dict[str, dict[str, str]]
KEY = "name"


def normalised_entropy(shares: Iterable[float]) -> float:
    """- sum p log p / V over the V values of a slot; `shares` are theirs, of any sum. 0 without values.

    >>> round(normalised_entropy([1, 1, 2]), 4)  # (0.25 log 4 + 0.25 log 4 + 0.5 log 2) / 3
    0.3466
    """
    positive = [share for share in shares if share > 0]
    total = sum(positive)
    return -sum(share / total * log(share / total) for share in positive) / max(len(positive), 1)


def make_abstraction(domain: MultiDomain) -> Abstraction:
    """Domain -> slot -> `slot0` for the constraint of the largest entropy, `info0` for what can only be asked, `book0`.

    The slot that names the entities is `name`. Entities give the frequencies of values; users do where there are none.
    """
    abstraction = {}
    for name, service in domain.services.items():
        constraints = [slot for slot in service.constraints if slot != service.key]
        asked = [slot for slot in service.requests if slot not in service.constraints and slot != service.key]
        booking = {f"{BOOK}{slot}": normalised_entropy(each.shares.values()) for slot, each in service.booking.items()}
        names = {service.key: KEY} if service.key in (*service.constraints, *service.requests) else {}
        names |= _rank("slot", {slot: _entropy(service, slot) for slot in constraints})
        names |= _rank("info", {slot: _entropy(service, slot) for slot in asked})
        abstraction[name] = names | _rank("book", booking)
    return abstraction


def _entropy(service: DomainService, slot: str) -> float:
    counts = Counter(entity.get(slot, UNKNOWN) for entity in service.entities)
    counts.pop(UNKNOWN, None)
    chances = service.constraints.get(slot)
    return normalised_entropy(counts.values() or (chances.shares.values() if chances else ()))


def _rank(kind: str, entropies: Mapping[str, float]) -> dict[str, str]:
    ranked = sorted(entropies, key=lambda slot: -entropies[slot])
    return {slot: f"{kind}{rank}" for rank, slot in enumerate(ranked)}


def write_abstraction(path: str | Path, abstraction: Abstraction) -> None:
    write_json(Path(path), abstraction)


def read_abstraction(path: str | Path, domain: MultiDomain) -> Abstraction:
    """The file's abstraction; a slot that it leaves out has no counterpart.

    Raises UserError for a file that is something else, an unknown domain or slot, and a name that two slots of a domain have.
    """
    begin = f"{path}: is not an abstraction, an object with the slots of each domain: "
    abstraction: Abstraction = read_json(Path(path), begin, shape=dict[str, dict[str, Any]])
    for name, slots in abstraction.items():
        domain_slots = make_abstraction(domain.only([name]))[name]
        for slot, label in slots.items():
            check_known(f"{path}: of the domain {name} the slot", slot, domain_slots)
            if not isinstance(label, str) or list(slots.values()).count(label) > 1:
                raise UserError(
                    f"{path}: the domain {name} has {label!r} twice, or not as a text; give each slot its own"
                )
    return abstraction


class SlotMapping:
    """How a member looks at another domain, or at its own: slots of the same name in the abstraction stand for each other.

    Features without a counterpart are 0. actions (P, 2): pairs of a whole action and the member's.
    """

    def __init__(self, abstraction: Abstraction, member: View, other: View):
        other_columns = dict(zip(_labels(abstraction, other), other.columns.tolist(), strict=True))
        labels = _labels(abstraction, member)
        if member.name == other.name:
            other_columns, labels = dict(enumerate(other.columns.tolist())), list(range(len(other.columns)))  # type: ignore[assignment, arg-type]
        self.columns: Rows = np.array([other_columns.get(label, -1) for label in labels], dtype=np.int64)
        numbers = {_intent(name, member): n for n, name in enumerate(member.layout.names)}
        pairs = zip(other.layout.names, other.actions.tolist(), strict=True)
        pairs_found = [(n, numbers[_intent(name, other)]) for name, n in pairs if _intent(name, other) in numbers]
        self.actions: Rows = np.array(pairs_found, dtype=np.int64)

    def observations(self, whole: Features) -> Features:
        """The member's observations (N, D') of whole ones (N, D)."""
        return np.pad(whole, ((0, 0), (0, 1))).take(self.columns, axis=1)


def _intent(action: str, view: View) -> str:
    return action.removeprefix(f"{view.name}_")


def _labels(abstraction: Abstraction, view: View) -> list[str]:
    """The features of a view by their names in the abstraction; those of slots that it leaves out name their domain."""
    places, slots = view.layout.places[view.name], abstraction.get(view.name, {})
    labels = []
    for feature in places:
        kind, _, slot = feature.partition(" ")
        label = slots.get(f"{BOOK}{slot}" if kind == "booking" else slot, f"{view.name}-{slot}")
        labels.append(f"{kind} {label}" if slot else kind)
    return [*labels, *(f"said {_intent(name, view)}" for name in view.layout.names), "turn"]
