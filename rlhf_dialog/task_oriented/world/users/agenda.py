"""The agenda-based user: a goal, and a stack of what to say next, with goodbye at the bottom."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from rlhf_dialog.task_oriented.domains import DONTCARE, NAME, TYPE, Domain
from rlhf_dialog.task_oriented.domains.domain import NOTHING
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.goals import Goal
from rlhf_dialog.task_oriented.world.users.parameters import PATIENCE, read_ranges


@dataclass
class SystemTurn:
    """The system's turn: its first intent, slots and values without `except`, and what it says of venues.

    offer: the venue of `inform name=X`, or empty; empty: nothing fits; choices: the only venues that there are
    """

    intent: str
    pairs: list[tuple[str, str]]
    slots: set[str]
    offer: str = ""
    empty: bool = False
    choices: tuple[str, ...] = ()


def read_system_turn(acts: list[Act]) -> SystemTurn:
    intent = acts[0].intent if acts else "null"
    pairs = [(act.slot, act.value) for act in acts if act.slot and act.intent != "except"]
    choices = tuple(act.value for act in acts if act.intent == "except")
    name = next((value for slot, value in pairs if slot == NAME), "") if intent == "inform" else ""
    offer, empty = "" if name == NOTHING else name, name == NOTHING and not choices
    return SystemTurn(intent, pairs, {slot for slot, _ in pairs}, offer, empty, choices)


def contradicts_goal(goal: Goal, domain: Domain, turn: SystemTurn, slot: str) -> bool:
    """Whether what the system said of the slot contradicts the goal, so that the user corrects it: another value; a venue that
    the user refused; or answers about another venue than the one that the user settled on."""
    if slot != NAME:
        wanted = goal.constraints.get(slot, DONTCARE)
        return wanted != DONTCARE and any(value != wanted for s, value in turn.pairs if s == slot)
    if turn.empty or turn.choices:
        return False
    if turn.offer in goal.other_than or (goal.wanted_name and turn.offer != goal.wanted_name):
        return True
    constraint_slots = {*domain.constraints, NAME}
    about_venue = any(slot in domain.requestable and slot not in constraint_slots for slot in turn.slots)
    return bool(goal.name) and about_venue and turn.offer != goal.name


def find_unconfirmed(goal: Goal, turn: SystemTurn) -> list[tuple[str, str]]:
    """The constraints that the system did not repeat; the user may ask about one of them."""
    spoken = set(turn.pairs)
    return [pair for pair in goal.constraints.items() if pair[1] != DONTCARE and pair not in spoken]


Pair = tuple[str, str]
Plan = tuple[str, list[Pair]]  # one thing to say: an intent, and slots with values (empty for a request)
LEAVES_WHEN_DONE = 0.85


class AgendaUser:
    """Asks for one entity and some of its slots, corrects the system, loses patience, and changes its mind.

    parameters: `friendly`, `unfriendly`, `fixed`, or a dict of changes (`users/parameters.py`)
    """

    def __init__(self, domain: Domain, parameters: "str | dict[str, float | tuple[float, float]]" = "friendly"):
        self.domain, self.ranges = domain, read_ranges(parameters)
        self.of_type: list[Pair] = [] if TYPE in domain.constraints else [(TYPE, domain.type)]
        self.goal = Goal({})

    def begin(self, goal: Goal, rng: Random) -> list[Act]:
        """The answer to the system's `hello`; `goal` is copied."""
        self.goal, self.rng = goal.copy(), rng
        self.chances = {name: rng.uniform(low, high) for name, (low, high) in self.ranges.items()}
        self.patience = self.all_patience = rng.randint(*PATIENCE)
        constraints: list[Pair] = [*goal.constraints.items(), *([(NAME, goal.wanted_name)] if goal.wanted_name else [])]
        self.agenda: list[Plan] = [("bye", []), *(("inform", [pair]) for pair in reversed(constraints))]
        if self.of_type:
            self.agenda.append(("inform", list(self.of_type)))
        self.used = {slot: {value} for slot, value in goal.constraints.items()}
        self.first_offer, self.nothing_fits = True, False
        self.last_said: Plan = ("null", [])
        self.before: set[Act] = set()
        return self.answer([Act("hello")])

    def answer(self, system_acts: list[Act]) -> list[Act]:
        """The next turn; a system that repeats itself, or says nothing, costs patience, and without patience it is `bye`."""
        turn = read_system_turn(system_acts)
        if turn.intent == "null" or set(system_acts) == self.before:
            self.patience -= 1
        if self.patience < 1:
            self._leave()
        else:
            self.before = set(system_acts)
            self._receive(turn)
        return self._respond(turn.intent)

    def _chance(self, name: str) -> bool:
        return self.rng.random() < self.chances[name]

    def _say(self, intent: str, *pairs: Pair) -> None:
        self.agenda.append((intent, list(pairs)))

    def _leave(self) -> None:
        self.agenda = [("bye", [])]

    def _open_requests(self) -> list[str]:
        return [slot for slot, value in self.goal.requests.items() if value is None]

    def _receive(self, turn: SystemTurn) -> None:
        """Change goal and agenda by what the system said."""
        done = not self.goal.constraints or self.nothing_fits or not self._open_requests()
        if not self.agenda and turn.intent != "reqmore" and done and self.rng.random() < LEAVES_WHEN_DONE:
            self._leave()
        elif turn.intent in HANDLERS:
            HANDLERS[turn.intent](self, turn)
        else:
            self.agenda.append((self.last_said[0], list(self.last_said[1])))

    def _hear_select(self, turn: SystemTurn) -> None:
        slot, value = turn.pairs[0]
        if slot != NAME:
            value = self.goal.constraints.setdefault(slot, DONTCARE)
        self._say("inform", (slot, value))

    def _hear_reqmore(self, turn: SystemTurn) -> None:
        goal = self.goal
        if len(self.agenda) > 1:
            intent, pairs = self.agenda[-1]
            if not {*pairs} & {*self.of_type} and self._chance("affirms_with_agenda") and intent == "inform":
                self.agenda[-1] = ("affirm", pairs)
        elif not self._open_requests():
            if self._chance("declines_more"):
                self._say("negate")
            elif not any(intent in ("inform", "confirm") for intent, _ in self.agenda):
                self._leave()
        elif goal.requests[NAME] is not None:
            for slot in self._open_requests():
                self._say("request", (slot, ""))
        elif self._chance("affirms_more"):
            self._say("affirm")
        else:
            constraints = [pair for pair in goal.constraints.items() if pair[1] != DONTCARE]
            self._say("inform", *self.of_type, *constraints)

    def _hear_confirm(self, turn: SystemTurn) -> None:
        if not self._check(turn):
            return
        for slot, value in turn.pairs:
            if slot not in self.goal.constraints and not (slot == NAME and self.goal.name) and value != DONTCARE:
                return self._say("negate", (slot, DONTCARE))
        pairs: list[Pair] = []
        if self.agenda and self.agenda[-1][0] == "inform" and self._chance("adds_to_affirmation"):
            pairs = self.agenda.pop()[1]
        self._say("affirm", *pairs)

    def _hear_request(self, turn: SystemTurn) -> None:
        slot, goal = turn.pairs[0][0], self.goal
        open_requests = self._open_requests()
        planned = [plan for plan in self.agenda if plan[0] == "inform" and any(slot == s for s, _ in plan[1])]
        offered = goal.requests[NAME]
        if offered is not None and open_requests:
            self._say("request", (open_requests[0], ""), (NAME, offered))
        elif slot not in self.domain.constraints and slot != NAME:
            self._say("negate")
        elif planned:
            self.agenda = [plan for plan in self.agenda if plan not in planned] + planned
        elif slot in goal.constraints:
            self._say("inform", (slot, goal.constraints[slot]))
        else:
            self._answer_unwanted(slot)

    def _answer_unwanted(self, slot: str) -> None:
        """The system asks for a slot that is not in the goal."""
        constraints = list(self.goal.constraints.items())
        chance, repeats = self.rng.random(), self.chances["repeats_constraint"]
        if chance < repeats and constraints:
            self._say("inform", self.rng.choice(constraints))
        elif chance < repeats + self.chances["leaves_open"] or slot == NAME:
            self._say("inform", ("", DONTCARE))
        else:
            self.goal.constraints[slot] = DONTCARE
            self._say("inform", (slot, DONTCARE))

    def _hear_inform(self, turn: SystemTurn) -> None:
        goal = self.goal
        if turn.offer and goal.requests[NAME] != turn.offer:
            self._forget()
        if not self._check(turn):
            return
        chosen = ""
        if turn.empty or turn.choices:
            if turn.choices:
                chosen = self._choose(turn)
            elif self._relax(turn):
                return
            else:
                return self._leave() if self._chance("gives_up") else self._say("inform", *self.of_type)
        elif self._refuses(turn):
            return
        self._note(turn, chosen)

    def _refuses(self, turn: SystemTurn) -> bool:
        """Once, after the first offer, the user may want another venue, or something else."""
        if self.first_offer and turn.offer:
            self.first_offer, chance, wants = False, self.rng.random(), self.chances["wants_alternative"]
            if chance < wants:
                self._refuse(turn.offer)
                self._say("reqalts")
                return True
            if chance < wants + self.chances["changes_mind"] and self._relax(turn):
                return True
        goal, name = self.goal, turn.offer
        if name and not goal.name and name not in goal.other_than:
            goal.name, goal.other_than = name, []
        return False

    def _refuse(self, name: str) -> None:
        goal = self.goal
        if name and not goal.name and name not in goal.other_than:
            goal.other_than.append(name)

    def _relax(self, turn: SystemTurn) -> bool:
        """Change one constraint, one that the system said where there is one, and say so; False without constraints."""
        goal, rng = self.goal, self.rng
        if not goal.constraints:
            return False
        spoken = [s for s, value in turn.pairs if s in self.domain.constraints and value != DONTCARE]
        slot = rng.choice(spoken or list(goal.constraints))
        goal.reconsider()
        value = DONTCARE
        if not self._chance("relaxes_constraint") and slot in self.used:
            unused = [value for value in self.domain.constraints[slot] if value not in self.used[slot]]
            value = rng.choice(unused) if unused else DONTCARE
            self.used[slot].add(value)
        goal.constraints[slot] = value
        if turn.empty or self._chance("says_what_changed"):
            self._say("reqalts", (slot, value))
        else:
            self._say("reqalts")
            if value == DONTCARE:
                self._refuse(turn.offer)
            else:
                goal.requests[slot] = None
        return True

    def _choose(self, turn: SystemTurn) -> str:
        """Pick one of the only venues that the system has; constraints that it did not name are given up."""
        goal = self.goal
        free = [n for n in turn.choices if n not in goal.other_than and goal.name in ("", n)]
        if not free:
            goal.reconsider()
        for slot in goal.constraints.keys() - turn.slots:
            goal.constraints[slot] = DONTCARE
            self._drop(slot)
        return self.rng.choice(free or turn.choices)

    def _note(self, turn: SystemTurn, chosen: str) -> None:
        """Write down the answers to the requests, then thank, go on, or ask the next one."""
        requests = self.goal.requests
        for slot, value in turn.pairs:
            if slot in requests and not (slot == NAME and value == NOTHING):
                requests[slot] = value
        if chosen:
            requests[NAME] = chosen
        if self._chance("confirms_instead"):
            self.agenda = [
                ("confirm", pairs) if intent == "inform" and pairs[0][1] != DONTCARE else (intent, pairs)
                for intent, pairs in self.agenda
            ]
        chance, thanks = self.rng.random(), self.chances["thanks"]
        if chance < thanks + self.chances["acknowledges"]:
            return self._say("thankyou" if chance < thanks else "ack")
        if len(self.agenda) > 1 and self._chance("goes_on_with_agenda"):
            return
        slots = [slot for slot in self._open_requests() if slot != NAME]
        if slots:
            asked = slots[:1]
            while len(asked) < len(slots) and self._chance("requests_one_more"):
                asked.append(slots[len(asked)])
            self._say("request", *((slot, "") for slot in asked), *([(NAME, chosen)] if chosen else []))

    def _forget(self) -> None:
        self.goal.requests = dict.fromkeys(self.goal.requests)

    def _check(self, turn: SystemTurn) -> bool:
        """Whether all that the system said is right; if not, a correction or a question is on the agenda."""
        goal, asks = self.goal, False
        for slot, value in turn.pairs:
            wrong = contradicts_goal(goal, self.domain, turn, slot)
            open_constraints = [] if turn.empty or turn.choices else find_unconfirmed(goal, turn)
            question = self.rng.choice(open_constraints) if open_constraints else None
            if wrong:
                self._correct(slot, value, question)
                return False
            if question and not asks and turn.intent == "inform" and self._chance("confirms_at_random"):
                self._say("confirm", question)
                asks = True
            elif turn.empty or turn.choices:
                self.nothing_fits = True
        if asks:
            goal.requests |= dict(turn.pairs)
        return not asks

    def _correct(self, slot: str, value: str, question: Pair | None) -> None:
        """Give up, ask about another constraint, or say what is right."""
        goal = self.goal
        if self.rng.random() < (1 - self.patience / self.all_patience) ** 2:
            return self._leave()
        if question and self._chance("overrules_correction"):
            self._say("confirm", question)
        elif slot == NAME and goal.other_than:
            self._say("reqalts")
        else:
            right = goal.name if slot == NAME else goal.constraints.get(slot, DONTCARE)
            chance, negates = self.rng.random(), self.chances["corrects_by_negating"]
            if chance < negates:
                self._say("negate", (slot, right))
            elif chance < negates + self.chances["corrects_by_denying"]:
                self._say("deny", (slot, value), (slot, right))
            else:
                self._say("inform", (slot, right))
        self._forget()

    def _drop(self, slot: str) -> None:
        turn = ("inform", "confirm", "affirm")
        self.agenda = [p for p in self.agenda if p[0] not in turn or all(slot != s for s, _ in p[1])]

    def _respond(self, asked: str) -> list[Act]:
        """Take the top of the agenda, perhaps with what lies below it."""
        intent, pairs = self.agenda.pop() if self.agenda else ("bye", [])
        if intent in ("inform", "confirm", "affirm", "negate"):
            for slot, _ in pairs:
                self._drop(slot)
        if intent in ("thankyou", "ack", "deny", "confirm", "reqalts") or asked == "reqmore":
            return _acts(intent, pairs)
        if intent == "inform" and asked in ("request", "select") and pairs[0][1] == DONTCARE:
            if self._chance("dontcare_without_slot"):
                pairs = [("", DONTCARE), *pairs[1:]]
        elif intent == "request" and len(pairs) == 1 and self.goal.requests[NAME] and self._chance("names_venue"):
            pairs = [*pairs, (NAME, self.goal.requests[NAME] or "")]
        if intent in ("inform", "negate", "hello", "affirm"):
            while self.agenda and self.agenda[-1][0] == "inform" and self._chance("combines_informs"):
                pairs = [*pairs, *self.agenda.pop()[1]]
        self.last_said = (intent, pairs)
        return _acts(intent, pairs)


def _acts(intent: str, pairs: list[Pair]) -> list[Act]:
    """The turn that says one plan."""
    if intent == "deny":
        return [Act("deny", *pairs[0]), Act("inform", *pairs[1])]
    if intent == "request":
        return [Act("inform" if value else "request", slot, value) for slot, value in pairs]
    if intent in ("inform", "confirm"):
        return [Act(intent, slot, value) for slot, value in pairs]
    return [Act(intent), *(Act("inform", slot, value) for slot, value in pairs)]


HANDLERS: dict[str, Callable[[AgendaUser, SystemTurn], None]] = {  # what the user does when the system says this
    "hello": lambda user, turn: user._say("hello") if user._chance("greets") else None,
    "request": AgendaUser._hear_request,
    "confirm": AgendaUser._hear_confirm,
    "select": AgendaUser._hear_select,
    "inform": AgendaUser._hear_inform,
    "reqmore": AgendaUser._hear_reqmore,
    "bye": lambda user, turn: user._leave(),
}
