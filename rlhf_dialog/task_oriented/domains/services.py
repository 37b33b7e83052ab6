"""Several domains in one dialogue: what each of them offers, and how often users want what."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains.domain import DONTCARE, NAME, UNKNOWN, Entity, check_known

AT_MOST, AT_LEAST = "arriveBy", "leaveAt"  # slots of times; a constraint is a limit, of the others a value
TIMES = (AT_MOST, AT_LEAST)
ALWAYS = 0.999


@dataclass(frozen=True)
class Chances:
    """Values and how often each one is drawn."""

    shares: Mapping[Any, float]

    def draw(self, rng: Random) -> Any:
        return rng.choices(list(self.shares), list(self.shares.values()))[0]


def meets(slot: str, limit: str, value: str) -> bool:
    """Whether the value fulfils a constraint: `arriveBy` is the latest time, `leaveAt` the earliest one."""
    if limit == DONTCARE:
        return True
    if slot == AT_MOST:
        return value <= limit
    return value >= limit if slot == AT_LEAST else value == limit


@dataclass(frozen=True)
class DomainService:
    """One domain of several. All values are text in lower case; times are HH:MM.

    key: the slot that names an entity; several entities of a table may share a name
    constraints, booking: slot -> its values with their shares among users; booking slots are what a booking needs
    requests: slot -> share of the users that ask for it; constrained: slot -> share of the users that constrain it
    combinations: sets of constraint slots with their shares; None: slots are drawn one by one by `constrained`
    booked: share of the goals with a booking
    entities: the table; empty where things are made when they are ordered
    made_from: part -> its values, of a thing that is made when it is ordered (a taxi)
    """

    name: str
    key: str
    constraints: Mapping[str, Chances]
    requests: Mapping[str, float]
    booking: Mapping[str, Chances] = field(default_factory=dict)
    constrained: Mapping[str, float] = field(default_factory=dict)
    combinations: Chances | None = None
    booked: float = 0.0
    entities: tuple[Entity, ...] = ()
    made_from: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The constraint slots without which nothing is offered: those of every user; to make a thing, all but its times."""
        if self.made_from:
            return tuple(slot for slot in self.constraints if slot not in TIMES)
        return tuple(slot for slot in self.constraints if self.constrained.get(slot, 0.0) > ALWAYS)

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """The constraint slots that a system may ask for: all but the name, the needed ones first."""
        optional = (slot for slot in self.constraints if slot not in self.needed and slot != NAME)
        return (*self.needed, *optional)

    @cached_property
    def is_named(self) -> bool:
        """Whether the key names one entity only."""
        return len({entity[self.key] for entity in self.entities}) == len(self.entities)

    @cached_property
    def _row_cache(self) -> dict[tuple[tuple[str, str], ...], tuple[int, ...]]:
        return {}

    def matching(self, constraints: Mapping[str, str]) -> tuple[int, ...]:
        """The numbers of the entities that fulfil the constraints, in order."""
        constrained = {slot: value for slot, value in constraints.items() if value != DONTCARE}
        equal = tuple(sorted(item for item in constrained.items() if item[0] not in TIMES))
        limits = [(slot, constrained[slot]) for slot in TIMES if slot in constrained]
        if not limits:
            return self._rows(equal)
        return tuple(
            n
            for n in self._rows(equal)
            if all(meets(slot, limit, self.entities[n].get(slot, UNKNOWN)) for slot, limit in limits)
        )

    def rows_that_have(self, values: Mapping[str, str]) -> tuple[int, ...]:
        """The numbers of the entities that have all the values which were said of one, its name among them."""
        return self._rows(tuple(sorted(x for x in values.items() if x[0] in self.constraints or x[0] == self.key)))

    def _rows(self, pairs: tuple[tuple[str, str], ...]) -> tuple[int, ...]:
        """The numbers of the entities that have these values."""
        if pairs not in self._row_cache:
            numbers = (n for n, entity in enumerate(self.entities) if all(entity.get(s) == v for s, v in pairs))
            self._row_cache[pairs] = tuple(numbers)
        return self._row_cache[pairs]


class MultiDomain:
    """Several services, and the goal model: in which orders users want them.

    name: of the data; services: by name; orders: tuples of names with their shares
    """

    def __init__(self, name: str, services: Mapping[str, DomainService], orders: Chances):
        self.name = name
        self.services = dict(services)
        self.orders = orders

    def only(self, names: Collection[str]) -> "MultiDomain":
        """These services alone; the orders are those of all without the others. Raises UserError for an unknown name, or none."""
        for name in names:
            check_known(f"domain {self.name}: the domain", name, self.services)
        shares: dict[tuple[str, ...], float] = {}
        for order, share in self.orders.shares.items():
            kept = tuple(name for name in order if name in names)
            shares[kept] = shares.get(kept, 0.0) + share
        shares.pop((), None)
        if not shares:
            raise UserError(f"domain {self.name}: no user wants any of {', '.join(names) or 'no domains'}; name others")
        services = {name: service for name, service in self.services.items() if name in names}
        return MultiDomain(self.name, services, Chances(shares))

    @cached_property
    def hash(self) -> str:
        """sha256 over the canonical JSON of slots, entities and goal model, in hex."""
        data = []
        for service in self.services.values():
            made_from = {part: list(values) for part, values in service.made_from.items()}
            booking = {f"book {slot}": chances for slot, chances in service.booking.items()}
            slots = {slot: dict(chances.shares) for slot, chances in {**service.constraints, **booking}.items()}
            sets = service.combinations.shares.items() if service.combinations else None
            combinations = None if sets is None else sorted(("+".join(names), share) for names, share in sets)
            head = [service.name, service.key, service.booked, service.entities, made_from]
            data.append([*head, slots, dict(service.requests), dict(service.constrained), combinations])
        orders = sorted(("+".join(order), share) for order, share in self.orders.shares.items())
        return hashlib.sha256(json.dumps([data, orders], sort_keys=True).encode()).hexdigest()
