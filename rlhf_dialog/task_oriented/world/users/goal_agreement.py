"""What a user hears in the system's acts, and whether it agrees with the goal."""

from dataclasses import dataclass

from rlhf_dialog.task_oriented.domains import DONTCARE, NAME, Domain
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.goals import Goal

NOTHING = "none"  # the name in `inform name=none`: nothing fits


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
    """Read the system's acts."""
    intent = acts[0].intent if acts else "null"
    pairs = [(act.slot, act.value) for act in acts if act.slot and act.intent != "except"]
    choices = tuple(act.value for act in acts if act.intent == "except")
    name = next((value for slot, value in pairs if slot == NAME), "") if intent == "inform" else ""
    return SystemTurn(
        intent,
        pairs,
        {slot for slot, _ in pairs},
        "" if name == NOTHING else name,
        name == NOTHING and not choices,
        choices,
    )


def contradicts_goal(goal: Goal, domain: Domain, turn: SystemTurn, slot: str) -> bool:
    """Whether what the system said of the slot contradicts the goal, so that the user corrects it."""
    nothing = turn.empty or bool(turn.choices)
    if slot == NAME:
        return not nothing and _wrong_venue(goal, domain, turn)
    goal_value = goal.constraints.get(slot)
    if goal_value is None or goal_value == DONTCARE:
        return False
    return any(value != goal_value for s, value in turn.pairs if s == slot)


def _wrong_venue(goal: Goal, domain: Domain, turn: SystemTurn) -> bool:
    """A venue that the user refused; or answers about another venue than the one that the user settled on."""
    if turn.offer in goal.other_than or (goal.wanted_name and turn.offer != goal.wanted_name):
        return True
    constraint_slots = {*domain.constraints, NAME}
    about_venue = any(slot in domain.requestable and slot not in constraint_slots for slot in turn.slots)
    return bool(goal.name) and about_venue and turn.offer != goal.name


def find_unconfirmed(goal: Goal, turn: SystemTurn) -> list[tuple[str, str]]:
    """The constraints that the system did not repeat; the user may ask about one of them."""
    spoken = set(turn.pairs)
    return [pair for pair in goal.constraints.items() if pair[1] != DONTCARE and pair not in spoken]
