"""The agenda-based user of several domains: a stack of what to say next, with goodbye at the bottom."""

from random import Random
from typing import Any, NamedTuple

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import DONTCARE, MultiDomain
from rlhf_dialog.task_oriented.domains.domain import check_known
from rlhf_dialog.task_oriented.domains.services import meets
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.multi_domain.goals import DomainGoal, MultiGoal

BOOK = "book "
REFERENCE = "ref"
OFFERS = ("inform", "recommend", "offerbook", "offerbooked")
DEFAULTS = {"acts_per_turn": 4, "failing_bookings": 0.0}


class AgendaItem(NamedTuple):
    """One thing to say; `domain` is empty for a goodbye, `slot` where a domain begins, `value` in a request."""

    intent: str
    domain: str = ""
    slot: str = ""
    value: str = ""

    @property
    def is_booking(self) -> bool:
        return self.slot.startswith(BOOK)


class MultiAgendaUser:
    """Has one domain after the other; says its constraints, asks, books, corrects what is wrong, and leaves when all is done.

    parameters: `friendly`, or a dict of changes: `acts_per_turn` (4), at most that many acts of one kind in a turn;
    `failing_bookings` (0), share of the bookings that are refused at first
    """

    def __init__(self, domain: MultiDomain, parameters: "str | dict[str, Any]" = "friendly"):
        self.domain = domain
        self.parameters = _parameters(parameters)
        self.goal = MultiGoal({})

    def begin(self, goal: MultiGoal, rng: Random) -> list[Act]:
        """The first turn; `goal` is copied."""
        self.goal = goal.copy()
        self.stack = [AgendaItem("bye")]
        for name, domain_goal in reversed(self.goal.by_domain.items()):
            constraints = list(domain_goal.wanted.items())
            rng.shuffle(constraints)
            self.stack += [AgendaItem("inform", name, slot, value) for slot, value in constraints]
            self.stack.append(AgendaItem("inform", name))
        return self._say()

    def answer(self, system_acts: list[Act]) -> list[Act]:
        """The next turn; `bye` when everything is done, or when nothing can be done any more."""
        by_domain: dict[str, list[tuple[str, str, str]]] = {}  # intent, slot and value
        for act in system_acts:
            name, _, slot = act.slot.partition("-")
            if name in self.goal.by_domain:
                by_domain.setdefault(name, []).append((act.intent, slot, act.value))
        for name, acts in by_domain.items():
            if not self._hear(name, self.goal.by_domain[name], acts):
                return [Act("bye")]
        is_said = not any(self._waiting(name, booking=False) for name in self.goal.by_domain)
        if self.goal.done and is_said:
            return [Act("bye")]
        self._go_on()
        return self._say()

    def _hear(self, name: str, goal: DomainGoal, acts: list[tuple[str, str, str]]) -> bool:
        """Take in what was said of one domain; False when there is no way out."""
        intents = [intent for intent, _, _ in acts]
        if "nooffer" in intents:
            return self._give_up(name, goal.fail_info, goal.info, "")
        if "nobook" in intents:
            return self._give_up(name, goal.fail_book, goal.book, BOOK)
        offered = [(slot, value) for intent, slot, value in acts if intent in OFFERS and value]
        if offered:
            is_right = self._check(name, goal, offered)
            if is_right and "offerbooked" in intents:
                goal.booked = next((value for slot, value in offered if slot == REFERENCE), "yes")
        for _, slot, _ in (act for act in acts if act[0] == "request"):
            self._answer(name, goal, slot)
        return True

    def _give_up(self, name: str, failed: dict[str, str], constraints: dict[str, str], prefix: str) -> bool:
        """Say what the user wants instead of what was refused; False where there is nothing else."""
        if not failed:
            return False
        for slot, value in constraints.items():
            if failed.get(slot) != value:
                self._push(AgendaItem("inform", name, prefix + slot, value))
        failed.clear()
        return True

    def _check(self, name: str, goal: DomainGoal, offered: list[tuple[str, str]]) -> bool:
        """Write down answers; what is wrong is said again. Answers are about one venue: another one begins with none."""
        key = self.domain.services[name].key
        venue = next((value for slot, value in offered if slot == key), goal.venue)
        if venue != goal.venue:
            goal.venue, goal.booked, goal.requests = venue, "", dict.fromkeys(goal.requests)
        waiting, is_right = self._waiting(name, booking=False), True
        constraints = goal.wanted | {BOOK + slot: value for slot, value in goal.wanted_booking.items()}
        for slot, value in offered:
            if slot in goal.requests:
                if not waiting:
                    self._drop("request", name, slot)
                    goal.requests[slot] = value
            elif slot in constraints and not meets(slot, constraints[slot], value):
                self._push(AgendaItem("inform", name, slot, constraints[slot]))
                is_right = False
        return is_right

    def _answer(self, name: str, goal: DomainGoal, slot: str) -> None:
        """What was asked for; `dontcare` for what the user does not care for, also for a booking that it does not want."""
        constraints = goal.wanted | {BOOK + slot: value for slot, value in goal.wanted_booking.items()}
        if slot not in goal.requests:
            self._push(AgendaItem("inform", name, slot, constraints.get(slot, DONTCARE)))

    def _go_on(self) -> None:
        """Ask, or book, in the first domain that is not done, once its constraints are said."""
        name = next((name for name, goal in self.goal.by_domain.items() if not goal.done), "")
        if not name or self._waiting(name, booking=False):
            return
        goal = self.goal.by_domain[name]
        asked = [slot for slot, value in goal.requests.items() if value is None]
        if asked and not any(item.intent == "request" and item.domain == name for item in self.stack):
            self.stack += [AgendaItem("request", name, slot) for slot in asked]
        elif not asked and not self._waiting(name, booking=True):
            self.stack += [AgendaItem("inform", name, BOOK + slot, x) for slot, x in goal.wanted_booking.items()]

    def _waiting(self, name: str, booking: bool) -> bool:
        """Whether something of this domain, or of its booking, is still to be said."""
        return any(x.intent == "inform" and x.domain == name and x.is_booking == booking for x in self.stack)

    def _push(self, item: AgendaItem) -> None:
        self._drop(item.intent, item.domain, item.slot)
        self.stack.append(item)

    def _drop(self, *what: str) -> None:
        self.stack = [item for item in self.stack if item[:3] != what]

    def _say(self) -> list[Act]:
        """Take up to `acts_per_turn` acts of one kind and one domain from the top of the stack."""
        if not self.stack:
            return [Act("bye")]
        top = self.stack[-1]
        acts: list[Act] = []
        while self.stack and len(acts) < self.parameters["acts_per_turn"]:
            item = self.stack[-1]
            if (item.intent, item.domain, item.is_booking) != (top.intent, top.domain, top.is_booking):
                break
            acts.append(self._act(self.stack.pop()))
        return acts

    def _act(self, item: AgendaItem) -> Act:
        if not item.domain:
            return Act(item.intent)
        value, goal = item.value, self.goal.by_domain[item.domain]
        place = goal.follows.get(item.slot)
        if place and self.goal.by_domain[place].venue:
            goal.info[item.slot] = value = self.goal.by_domain[place].venue
        return Act(item.intent, f"{item.domain}-{item.slot}" if item.slot else item.domain, value)


def _parameters(parameters: Any) -> dict[str, Any]:
    if parameters == "friendly":
        return DEFAULTS
    if not isinstance(parameters, dict):
        raise UserError(f"user {parameters!r}: with several domains, use friendly, or a dict of {', '.join(DEFAULTS)}")
    for name, value in parameters.items():
        check_known("user parameter", name, DEFAULTS)
        is_whole = isinstance(value, int) and value >= 1
        is_fine = is_whole if name == "acts_per_turn" else isinstance(value, int | float) and 0 <= value <= 1
        if not is_fine:
            expected = "a whole number above 0" if name == "acts_per_turn" else "a number from 0 to 1"
            raise UserError(f"user parameter '{name}' is {value!r}; give {expected}")
    return DEFAULTS | parameters
