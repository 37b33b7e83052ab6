"""The policy's choices with several domains, which of them make sense, and the acts they become; and what the policy sees."""

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.task_oriented.domains import DONTCARE, MultiDomain
from rlhf_dialog.task_oriented.domains.services import DomainService
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.multi_domain.state import BookingDesk, DialogueState, DomainState
from rlhf_dialog.task_oriented.world.multi_domain.user import BOOK, REFERENCE

MOST_ASKED = 4
NULL = [Act("null")]
GLOBAL = ("reqmore", "bye")


def list_intents(service: DomainService) -> tuple[str, ...]:
    """What a system can do in a domain."""
    intents = ["request"] if service.asked else []
    intents += ["recommend", "nooffer"] if service.entities and service.constraints else []
    intents += ["inform"] if service.entities and service.requests else []
    intents += ["request_booking"] if service.booking else []
    return (*intents, "book") if service.booking or service.made_from else tuple(intents)


def split_actions(domain: MultiDomain) -> dict[str, tuple[str, str]]:
    """`hotel_request`, `hotel_recommend`, ... -> the domain and the intent."""
    services = domain.services.items()
    return {f"{name}_{intent}": (name, intent) for name, service in services for intent in list_intents(service)}


def action_names(domain: MultiDomain) -> tuple[str, ...]:
    """Those of the domains, then `reqmore` and `bye`."""
    return (*split_actions(domain), *GLOBAL)


class MultiActions:
    """Masks and acts. A = len(names)."""

    def __init__(self, domain: MultiDomain):
        self.names, self.split = action_names(domain), split_actions(domain)

    def mask(self, state: DialogueState) -> NDArray[np.bool_]:
        """(A,), True where the action makes sense now: in the domains of which the user has spoken; the global ones always."""
        mask = np.zeros(len(self.names), dtype=np.bool_)
        mask[-len(GLOBAL) :] = True
        allowed = {name: _allowed_intents(domain_state) for name, domain_state in state.domains.items()}
        for number, (name, intent) in enumerate(self.split.values()):
            mask[number] = name in allowed and allowed[name][intent]
        return mask

    def acts(self, name: str, state: DialogueState, desk: BookingDesk) -> list[Act]:
        """The turn that an action becomes; `null`, which the user does not understand, where it makes no sense."""
        if name in GLOBAL:
            return [Act(name)]
        domain, intent = self.split[name]
        domain_state = state.domains.get(domain)
        if domain_state is None or not _allowed_intents(domain_state)[intent]:
            return NULL
        if intent == "request":
            return [Act("request", f"{domain}-{slot}") for slot in domain_state.missing[:MOST_ASKED]]
        if intent == "request_booking":
            return [Act("request", f"{domain}-{BOOK}{slot}") for slot in domain_state.missing_booking]
        if intent == "nooffer":
            return [Act("nooffer", f"{domain}-{s}", x) for s, x in domain_state.constraints.items() if x != DONTCARE]
        return _book(domain_state, desk) if intent == "book" else _describe(domain_state, intent)


def _allowed_intents(domain_state: DomainState) -> dict[str, bool]:
    has_choice, order = domain_state.choice is not None, domain_state.order
    again = bool(domain_state.service.made_from and domain_state.asked)
    wants_booking = not domain_state.declined and not domain_state.refused
    return {
        "request": bool(domain_state.missing),
        "recommend": has_choice,
        "nooffer": domain_state.is_ready
        and not domain_state.matches
        and any(value != DONTCARE for value in domain_state.constraints.values()),
        "inform": bool(domain_state.asked) and has_choice,
        "request_booking": bool(domain_state.missing_booking) and not domain_state.declined,
        "book": wants_booking and order is not None and (again or domain_state.booked != order),
    }


def _describe(domain_state: DomainState, intent: str) -> list[Act]:
    """Offer the entity with the values that the user wants; or answer requests, after the offer of what was not offered."""
    service, number = domain_state.service, domain_state.choice
    entity = service.entities[number or 0]
    acts = []
    if intent == "recommend" or domain_state.offered is None:
        slots = [slot for slot in service.constraints if slot in domain_state.constraints or not service.is_named]
        acts = [Act("recommend", f"{service.name}-{s}", entity[s]) for s in dict.fromkeys([service.key, *slots])]
    if intent == "inform":
        slots = [slot for slot in domain_state.asked if slot in entity]
        named = [] if acts else [service.key]
        acts += [Act("inform", f"{service.name}-{slot}", entity[slot]) for slot in dict.fromkeys([*named, *slots])]
    return acts


def _book(domain_state: DomainState, desk: BookingDesk) -> list[Act]:
    """Book what can be booked, and say its reference; `nobook` where that is refused."""
    service, order = domain_state.service, domain_state.order
    assert order is not None
    booking = desk.book(service.name, order, service.made_from)
    if booking is None:
        return [Act("nobook", f"{service.name}-{BOOK}{slot}", value) for slot, value in order[1]]
    values = dict(booking.made)
    if order[0] is not None:
        entity = service.entities[order[0]]
        values = {service.key: entity[service.key]}
        if domain_state.offered is None or not service.is_named:
            wanted = domain_state.constraints if service.is_named else service.constraints
            values |= {slot: entity[slot] for slot in service.constraints if slot in wanted}
        values[REFERENCE] = booking.reference
    prefix = "" if service.made_from else BOOK
    values |= {f"{prefix}{slot}": value for slot, value in order[1]}
    return [Act("offerbooked", f"{service.name}-{slot}", value) for slot, value in values.items()]


FEW = 5
FLAGS = ("current", "spoken_of", "ready", "none", "one", "few", "many", "offered", "booked", "declined", "refused")


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
            constraints = [f"{kind} {slot}" for slot in service.constraints for kind in ("known", "dontcare")]
            booking = [f"booking {slot}" for slot in service.booking]
            features = [*FLAGS, *constraints, *booking, *(f"asked {slot}" for slot in service.requests)]
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
