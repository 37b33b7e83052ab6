"""Did the dialogue do what the user wanted of each domain? From the goal, the system's acts and the bookings alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rlhf_dialog.task_oriented.domains import DONTCARE, MultiDomain
from rlhf_dialog.task_oriented.domains.services import DomainService, meets
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.multi_domain.goals import DEPARTURE, DESTINATION, DomainGoal, MultiGoal
from rlhf_dialog.task_oriented.world.multi_domain.state import Booking
from rlhf_dialog.task_oriented.world.multi_domain.user import OFFERS


@dataclass(frozen=True)
class MultiOutcome:
    """success: in every domain the entity that was booked, else the one that was offered last, fulfils the constraints as they
    were at the end, each request was answered with its own value, and a booking has the slots that the user wanted.

    precision, recall, f1 of informed slots over all domains: answers with the entity's value are right; informed slots that
    were neither requested nor constraints are wrong; requests without a right answer are missing. None without requests.
    book_rate: mean over the domains with a booking of the share of constraints that the booked entity fulfils; None without
    """

    success: bool
    precision: float | None
    recall: float | None
    f1: float | None
    book_rate: float | None


@dataclass
class SystemClaims:
    """What a system said of one domain: of each entity its values, and which was the last one; `slots`: all that was informed."""

    venue: str = ""
    rows: dict[str, tuple[int, ...]] = field(default_factory=dict)
    values: dict[str, dict[str, str]] = field(default_factory=dict)
    slots: set[str] = field(default_factory=set)


class Verdict(NamedTuple):
    """Of one domain: right answers, useless ones, whether everything fits, and the share of a booking that does."""

    right: int
    useless: int
    fits: bool
    booked: float | None


def evaluate(
    domain: MultiDomain, goal: MultiGoal, system_turns: Sequence[Sequence[Act]], bookings: Sequence[Booking]
) -> MultiOutcome:
    """The outcome of a dialogue; `goal` is the goal at its end."""
    verdicts = []
    for name, domain_goal in goal.by_domain.items():
        booking = next((booking for booking in reversed(bookings) if booking.domain == name), None)
        verdicts.append(
            _verdict(domain.services[name], domain_goal, _collect_claims(domain.services[name], system_turns), booking)
        )
    other_services = [service for name, service in domain.services.items() if name not in goal.by_domain]
    useless = sum(len(_collect_claims(x, system_turns).slots & set(x.requests)) for x in other_services)
    num_requests = sum(len(domain_goal.requests) for domain_goal in goal.by_domain.values())
    right, useless = sum(verdict.right for verdict in verdicts), useless + sum(verdict.useless for verdict in verdicts)
    booked = [verdict.booked for verdict in verdicts if verdict.booked is not None]
    success = right == num_requests and all(verdict.fits for verdict in verdicts)
    return MultiOutcome(success, *_scores(right, useless, num_requests), sum(booked) / len(booked) if booked else None)


def _scores(right: int, useless: int, num_requests: int) -> tuple[float | None, float | None, float | None]:
    if not num_requests:
        return None, None, None
    precision, recall = right / (right + useless) if right + useless else 0.0, right / num_requests
    return precision, recall, 2 * precision * recall / (precision + recall) if right else 0.0


def _collect_claims(service: DomainService, system_turns: Sequence[Sequence[Act]]) -> SystemClaims:
    claims, prefix = SystemClaims(), f"{service.name}-"
    for acts in system_turns:
        turn = {x.slot.removeprefix(prefix): x.value for x in acts if x.intent in OFFERS and x.slot.startswith(prefix)}
        if not turn:
            continue
        if service.key in turn and service.entities:
            claims.venue = turn[service.key]
            numbers = claims.rows.get(claims.venue) or service.rows_that_have({service.key: claims.venue})
            meant = set(service.rows_that_have(turn))  # none where something was wrong
            claims.rows[claims.venue] = tuple(n for n in numbers if n in meant) or numbers
        claims.values.setdefault(claims.venue, {}).update(turn)
        claims.slots |= {slot for slot, value in turn.items() if value}
    return claims


def _verdict(service: DomainService, goal: DomainGoal, claims: SystemClaims, booking: Booking | None) -> Verdict:
    constrained = {*goal.info, *goal.fail_info}
    useless = sum(slot in service.requests for slot in claims.slots - set(goal.requests) - constrained)
    if service.made_from:
        made, slots = (booking.made, booking.slots) if booking else ({}, {})
        values = claims.values.get("", {})
        right = sum(slot in made and values.get(slot) == made[slot] for slot in goal.requests)
        fits = all(value in (slots.get(slot), DONTCARE) for slot, value in goal.wanted.items())
        return Verdict(right, useless, booking is not None and fits, float(booking is not None))
    rows, values = _rows(service, claims, booking)
    fitting = set(service.matching(goal.wanted))
    candidates = [(n in fitting, sum(values.get(s) == service.entities[n][s] for s in goal.requests), n) for n in rows]
    if not candidates:
        return Verdict(0, useless, False, 0.0 if goal.book else None)
    fits, right, number = max(candidates, key=lambda candidate: candidate[:2])
    if not goal.book:
        return Verdict(right, useless, fits, None)
    is_booked = booking is not None and dict(booking.slots) == goal.wanted_booking
    return Verdict(right, useless, fits and is_booked, _share(service, goal, number) if booking else 0.0)


def _rows(
    service: DomainService, claims: SystemClaims, booking: Booking | None
) -> tuple[Sequence[int], dict[str, str]]:
    """The entity that was booked, else those that the last offer may mean, and what was said of it."""
    if booking is not None and booking.entity is not None:
        return (booking.entity,), claims.values.get(service.entities[booking.entity][service.key], {})
    return claims.rows.get(claims.venue, ()), claims.values.get(claims.venue, {})


def _share(service: DomainService, goal: DomainGoal, number: int) -> float:
    """The share of the constraints that the entity fulfils; the ends of a journey are left out."""
    entity = service.entities[number]
    checked = [meets(slot, x, entity[slot]) for slot, x in goal.wanted.items() if slot not in (DEPARTURE, DESTINATION)]
    return sum(checked) / len(checked) if checked else 1.0
