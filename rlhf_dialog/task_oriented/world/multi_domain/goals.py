"""What a user wants of several domains, drawn from the goal model, or given by hand."""

from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import damage_as_user_error
from rlhf_dialog.task_oriented.domains import NAME, MultiDomain
from rlhf_dialog.task_oriented.domains.services import AT_LEAST, AT_MOST, TIMES, DomainService

MAX_TRIALS, MAX_DRAWS = 100, 10_000
SAME_AREA, SAME_PEOPLE = 0.5, 0.5  # shares of users that want it in both domains
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
PLACES = ("attraction", "hotel", "restaurant", "police", "hospital")  # where a taxi goes
HUB = "cambridge"  # where the hotels are
DEPARTURE, DESTINATION, AREA = "departure", "destination", "area"
KEYS = ("info", "fail_info", "requests", "book", "fail_book")


@dataclass
class DomainGoal:
    """What the user wants of one domain.

    info: constraints; fail_info: those that the user has first, which nothing fulfils; empty when it has given them up
    requests: slot -> what the user heard, None at first
    book: slots of a booking; fail_book: those that the user has first, which are refused
    follows: slots of `info` whose value is the place that the user found in another domain
    venue: the entity that the user heard of last; booked: what the user knows of a booking, a reference or "yes"
    """

    info: dict[str, str]
    fail_info: dict[str, str] = field(default_factory=dict)
    requests: dict[str, str | None] = field(default_factory=dict)
    book: dict[str, str] = field(default_factory=dict)
    fail_book: dict[str, str] = field(default_factory=dict)
    follows: dict[str, str] = field(default_factory=dict)
    venue: str = ""
    booked: str = ""

    @property
    def wanted(self) -> dict[str, str]:
        return self.fail_info or self.info

    @property
    def wanted_booking(self) -> dict[str, str]:
        return self.fail_book or self.book

    @property
    def done(self) -> bool:
        """Whether the user has heard all that it asked for, and has its booking."""
        return None not in self.requests.values() and (not self.book or bool(self.booked))

    def as_dict(self) -> dict[str, Any]:
        """For transcripts: what is not empty; of the requests their slots."""
        known = {key: getattr(self, key) for key in KEYS if getattr(self, key)}
        return {key: list(value) if key == "requests" else dict(value) for key, value in known.items()}


@dataclass
class MultiGoal:
    """The goals of the domains, in the order in which the user has them."""

    by_domain: dict[str, DomainGoal]

    @property
    def done(self) -> bool:
        """Whether the goal of every domain is."""
        return all(goal.done for goal in self.by_domain.values())

    def copy(self) -> "MultiGoal":
        return deepcopy(self)

    def as_dict(self) -> dict[str, Any]:
        return {name: goal.as_dict() for name, goal in self.by_domain.items()}


def parse_goal(domain: MultiDomain, data: Any) -> MultiGoal:
    """The goal of a dict as `MultiGoal.as_dict` writes it. Raises UserError for anything else."""
    wanted = f"{{domain: {{{', '.join(KEYS)}}}}} of {', '.join(domain.services)}"
    with damage_as_user_error(f"goal {data}: is not {wanted}: "):
        parts = {domain.services[name].name: {"info": {}} | part for name, part in data.items()}
        requests = {name: dict.fromkeys(part.get("requests", ())) for name, part in parts.items()}
        return MultiGoal({name: DomainGoal(**part | {"requests": requests[name]}) for name, part in parts.items()})


def draw_goal(domain: MultiDomain, rng: Random, failing_bookings: float = 0.0) -> MultiGoal:
    """A goal from the goal model's distributions, with what ConvLab's users want in common of two domains.

    failing_bookings: share of the bookings that are refused at first
    """
    by_domain = {name: _draw_domain_goal(domain.services[name], rng) for name in domain.orders.draw(rng)}
    _connect_taxi(by_domain)
    _same_area(domain, by_domain, rng)
    _same_booking(by_domain, rng)
    _same_day(domain, by_domain)
    for goal in by_domain.values():
        if goal.book and failing_bookings and rng.random() < failing_bookings:
            goal.fail_book = _another_booking(goal.book, rng)
    return MultiGoal(by_domain)


def _draw_domain_goal(service: DomainService, rng: Random) -> DomainGoal:
    """Constraints that something fulfils, at least one request or a booking. Raises UserError when none is found."""
    for _ in range(MAX_DRAWS):
        info = _constraints(service, rng)
        if service.constraints and not info:
            continue
        requests = [slot for slot, share in service.requests.items() if rng.random() < share and slot not in info]
        book = {}
        if service.booking and rng.random() < service.booked:
            book = {slot: chances.draw(rng) for slot, chances in service.booking.items()}
        first: dict[str, str] = {}
        if service.entities and not service.matching(info):
            changed = _fulfillable(service, info, rng)
            if changed is None:
                continue
            keeps_first = AT_MOST not in service.constraints  # of a journey, only the changed one is asked for
            first, info = (info if keeps_first else {}), changed
        if requests or book:
            return DomainGoal(info, first, dict.fromkeys(requests), book)
    raise UserError(
        f"domain {service.name}: {MAX_DRAWS} draws from the goal model found no constraints that an entity fulfils, with a "
        "request or a booking; correct the shares, or leave the domain out"
    )


def _constraints(service: DomainService, rng: Random) -> dict[str, str]:
    if service.combinations:
        slots = list(service.combinations.draw(rng))
    else:
        slots = [slot for slot, share in service.constrained.items() if rng.random() < share]
        if NAME in slots and len(slots) > 1:
            slots = [NAME] if rng.random() < service.constrained[NAME] else [slot for slot in slots if slot != NAME]
    if all(slot in service.constraints for slot in TIMES):
        slots = _one_time(service, slots, rng)
    info = {slot: service.constraints[slot].draw(rng) for slot in slots}
    if all(slot in service.constraints for slot in (DEPARTURE, DESTINATION)):
        _journey(service, info, rng)
    return info


def _one_time(service: DomainService, slots: list[str], rng: Random) -> list[str]:
    """A user of trains and taxis says when to leave or when to arrive."""
    times = [slot for slot in TIMES if slot in slots]
    if len(times) == 1:
        return slots
    late, early = (service.constrained.get(slot, 1.0) for slot in (AT_MOST, AT_LEAST))
    time = AT_MOST if rng.random() * (late + early) < late else AT_LEAST
    return [*(slot for slot in slots if slot not in TIMES), time]


def _journey(service: DomainService, info: dict[str, str], rng: Random) -> None:
    """Two different ends: those of an entity where there are any."""
    if service.entities:
        ends = rng.choice(service.entities)
        info |= {slot: ends[slot] for slot in (DEPARTURE, DESTINATION)}
    for slot in (DEPARTURE, DESTINATION):
        info.setdefault(slot, service.constraints[slot].draw(rng))
    for _ in range(MAX_TRIALS):
        if info[DEPARTURE] != info[DESTINATION]:
            return
        slot = rng.choice((DEPARTURE, DESTINATION))
        info[slot] = service.constraints[slot].draw(rng)


def _fulfillable(service: DomainService, info: dict[str, str], rng: Random) -> dict[str, str] | None:
    """The constraints with another value of one slot, so that something fulfils them; None where that is not found."""
    for _ in range(MAX_TRIALS):
        slot = rng.choice(list(info))
        changed = info | {slot: rng.choice(list(service.constraints[slot].shares))}
        if service.matching(changed):
            return changed
    return None


def _connect_taxi(by_domain: dict[str, DomainGoal]) -> None:
    """A taxi after other places goes to the last of them, from the one before it, and to a table in time."""
    if "taxi" not in by_domain:
        return
    before = list(by_domain)[: list(by_domain).index("taxi")]
    places, taxi = [name for name in before if name in PLACES], by_domain["taxi"]
    for slot, place in zip((DESTINATION, DEPARTURE), reversed(places), strict=False):
        taxi.info[slot], taxi.follows[slot] = f"the {place}", place
    time = by_domain[places[-1]].book.get("time") if places else None
    if time:
        taxi.info[AT_MOST] = time
        taxi.info.pop(AT_LEAST, None)


def _same_area(domain: MultiDomain, by_domain: dict[str, DomainGoal], rng: Random) -> None:
    """A restaurant after an attraction may be wanted in the same area."""
    names = [name for name in by_domain if name in ("attraction", "restaurant")]
    if names != ["attraction", "restaurant"]:
        return
    attraction, restaurant = (by_domain[name] for name in names)
    if restaurant.fail_info or AREA not in restaurant.info or AREA not in attraction.info:
        return
    changed = restaurant.info | {AREA: attraction.info[AREA]}
    if domain.services["restaurant"].matching(changed) and rng.random() < SAME_AREA:
        restaurant.info = changed


def _same_booking(by_domain: dict[str, DomainGoal], rng: Random) -> None:
    """A table and a room are for the same day, and often for the same people."""
    table, room = (by_domain[name].book if name in by_domain else {} for name in ("restaurant", "hotel"))
    if table and room:
        for slot, share in (("people", SAME_PEOPLE), ("day", 1.0)):
            if slot in table and slot in room and rng.random() < share:
                table[slot] = room[slot]


def _same_day(domain: MultiDomain, by_domain: dict[str, DomainGoal]) -> None:
    """The train comes on the day of the room, or leaves after the last night; without such a train nobody wants one."""
    train, room = (getattr(by_domain.get(name), part, {}) for name, part in (("train", "info"), ("hotel", "book")))
    if "day" not in train or room.get("day") not in DAYS:
        return
    if train.get(DESTINATION) == HUB:
        train["day"] = room["day"]
    elif train.get(DEPARTURE) == HUB and room.get("stay", "").isdigit():
        train["day"] = DAYS[(DAYS.index(room["day"]) + int(room["stay"])) % len(DAYS)]
    if not domain.services["train"].matching(train):
        del by_domain["train"]


def _another_booking(book: dict[str, str], rng: Random) -> dict[str, str]:
    """The booking that the user has first: another day, hour or number; none where there are only other values."""
    alternatives = {slot: other for slot, value in book.items() if (other := _next_value(value))}
    slot = rng.choice(list(alternatives)) if alternatives else ""
    return book | {slot: alternatives[slot]} if slot else {}


def _next_value(value: str) -> str:
    hour, _, minute = value.partition(":")
    if value in DAYS:
        return DAYS[DAYS.index(value) - 1]
    if hour.isdigit() and minute:
        return f"{(int(hour) + 1) % 24:02d}:{minute}"
    return str(int(value) + 1) if value.isdigit() else ""
