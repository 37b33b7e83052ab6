"""What a system knows of a dialogue about several domains: a function of both sides' acts and of the tables; and its bookings."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rlhf_dialog.task_oriented.domains import DONTCARE, MultiDomain
from rlhf_dialog.task_oriented.domains.services import TIMES, DomainService
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.multi_domain.user import BOOK, OFFERS, REFERENCE

Booked = tuple[int | None, tuple[tuple[str, str], ...]]


@dataclass
class DomainState:
    """One domain, of which the user has spoken.

    constraints: those that the user said; booking: slots of a booking that it said; asked: requests without an answer
    matches: the numbers of the entities that fit, when all needed slots are known; offered: the one offered last
    booked: what was booked last, None before; refused: the booking as it is was refused; declined: no booking is wanted
    """

    service: DomainService
    constraints: dict[str, str] = field(default_factory=dict)
    booking: dict[str, str] = field(default_factory=dict)
    asked: dict[str, None] = field(default_factory=dict)
    matches: tuple[int, ...] = ()
    offered: int | None = None
    booked: Booked | None = None
    refused: bool = False
    declined: bool = False

    def __post_init__(self) -> None:
        self.look_up()

    def look_up(self) -> None:
        """Find what fits the constraints; an offer that does not fit any more is forgotten."""
        self.matches = self.service.matching(self.constraints) if self.service.entities and self.is_ready else ()
        if self.offered is not None and self.offered not in self.matches:
            self.offered = None

    @property
    def is_ready(self) -> bool:
        """Whether all needed slots are known."""
        return all(slot in self.constraints for slot in self.service.needed)

    @property
    def has_time(self) -> bool:
        """Whether the user said when to leave, or when to arrive."""
        return any(self.constraints.get(slot, DONTCARE) != DONTCARE for slot in TIMES)

    @property
    def choice(self) -> int | None:
        """The entity to speak of: the one that was offered, else the first that fits; None without any."""
        return self.offered if self.offered is not None else next(iter(self.matches), None)

    @property
    def missing(self) -> list[str]:
        """The constraint slots to ask for: the needed ones; else those that are not known. One of the times is enough."""
        needed = [slot for slot in self.service.needed if slot not in self.constraints]
        optional = [s for s in self.service.asked if s not in self.constraints and not (self.has_time and s in TIMES)]
        return needed or optional

    @property
    def missing_booking(self) -> list[str]:
        return [slot for slot in self.service.booking if slot not in self.booking]

    @property
    def order(self) -> Booked | None:
        """What can be booked now: the entity and the slots; for what is made to order the constraints. None: nothing."""
        if self.service.made_from:
            times = [slot for slot in TIMES if slot in self.service.constraints and slot not in self.constraints]
            return (None, tuple(self.constraints.items())) if self.is_ready and (self.has_time or not times) else None
        if not self.service.booking or self.missing_booking or self.choice is None:
            return None
        return self.choice, tuple((slot, self.booking[slot]) for slot in self.service.booking)

    @property
    def is_booked(self) -> bool:
        """Whether what can be booked now is booked."""
        return self.booked is not None and self.booked == self.order


class DialogueState:
    """The domains of which the user has spoken, and the one of which it spoke last (empty before)."""

    def __init__(self, domain: MultiDomain):
        self.domain = domain
        self.domains: dict[str, DomainState] = {}
        self.current = ""

    def update(self, system_acts: Sequence[Act], user_acts: Sequence[Act]) -> None:
        """Take in a turn of the system and the user's answer."""
        self._hear_system(system_acts)
        changed = set()
        for act in user_acts:
            name, _, slot = act.slot.partition("-")
            if name not in self.domain.services:
                continue
            self.current = name
            state = self.domains.setdefault(name, DomainState(self.domain.services[name]))
            if act.intent == "request":
                state.asked[slot] = None
            elif act.intent == "inform" and slot:
                _note(state, slot, act.value)
                changed.add(name)
        for name in changed:
            self.domains[name].look_up()

    def _hear_system(self, acts: Sequence[Act]) -> None:
        """What was offered, answered, booked or refused."""
        informed: dict[str, dict[str, str]] = {}
        for act in acts:
            name, _, slot = act.slot.partition("-")
            if name in self.domains and act.intent in (*OFFERS, "nobook"):
                informed.setdefault(name, {})[slot] = act.value
        for name, values in informed.items():
            state = self.domains[name]
            for slot in values:
                state.asked.pop(slot, None)
            if state.service.key in values and state.service.entities:
                rows = ((n, state.service.entities[n]) for n in state.matches)
                state.offered = next((n for n, row in rows if all(row.get(s, v) == v for s, v in values.items())), None)
            if any(act.intent == "nobook" for act in acts):
                state.refused = True
            elif state.service.made_from or REFERENCE in values:
                state.booked = state.order


def _note(state: DomainState, slot: str, value: str) -> None:
    if not slot.startswith(BOOK):
        state.constraints[slot] = value
    elif value == DONTCARE:
        state.declined = True
    else:
        state.booking[slot.removeprefix(BOOK)] = value
        state.refused = state.declined = False


NUM_CHARACTERS, NUM_DIGITS = 8, 10
CHARACTERS = string.ascii_lowercase + string.digits


@dataclass(frozen=True)
class Booking:
    """One booking. entity: its number in the table, None for what was made to order; slots: what it was booked with;
    made: the slots of what was made (a taxi)."""

    domain: str
    reference: str
    entity: int | None
    slots: Mapping[str, str]
    made: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "slots": dict(self.slots), "made": dict(self.made)}


class BookingDesk:
    """The bookings of one dialogue. All chance comes from `rng`; `refused` has for each domain slots that are refused."""

    def __init__(self, rng: Random, refused: Mapping[str, Mapping[str, str]]):
        self.rng, self.refused = rng, refused
        self.bookings: list[Booking] = []

    def book(self, domain: str, order: Booked, made_from: Mapping[str, Sequence[str]]) -> Booking | None:
        """Book, or None where it is refused."""
        number, slots = order[0], dict(order[1])
        if self.refused.get(domain) == slots:
            return None
        made = {}
        if made_from:
            car = " ".join(self.rng.choice(values) for values in made_from.values())
            made = {"car type": car, "phone": "".join(self.rng.choices(string.digits, k=NUM_DIGITS))}
        reference = "".join(self.rng.choices(CHARACTERS, k=NUM_CHARACTERS))
        self.bookings.append(Booking(domain, reference, number, slots, made))
        return self.bookings[-1]
