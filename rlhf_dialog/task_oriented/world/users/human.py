"""A person as the user: the goal is shown, and the acts are read from what the person types."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from rlhf_dialog.task_oriented.domains import DONTCARE, NAME, Domain
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.goals import Goal
from rlhf_dialog.task_oriented.world.success import without_contradictions
from rlhf_dialog.task_oriented.world.tracker import NOTHING
from rlhf_dialog.task_oriented.world.words import slot_in_words, user_words


class HumanUser:
    """A person with a hidden goal, who types the turns.

    ask: returns what the person types; None is a goodbye. The system's reply is shown by who makes the step.
    show: shows the goal at the beginning

    `words` is what was typed last, as the policy reads it.
    """

    def __init__(self, domain: Domain, ask: Callable[[], str | None], show: Callable[[str], None]):
        self.domain, self.ask, self.show = domain, ask, show
        self.read = user_words(domain).read
        self.goal, self.words = Goal({}), ""

    def begin(self, goal: Goal, rng: Random) -> list[Act]:
        """Show the goal, and ask for the first turn; nothing is random."""
        self.goal = goal.copy()
        self.show(describe_goal(self.domain, self.goal))
        return self.answer([])

    def answer(self, system_acts: list[Act]) -> list[Act]:
        typed = self.ask()
        self.words = "Goodbye ." if typed is None else typed
        return self.read(self.words)


def describe_goal(domain: Domain, goal: Goal) -> str:
    """What the person is asked to do, in two sentences."""
    constraints = sorted(goal.constraints.items(), key=lambda item: item[1] == DONTCARE)
    wishes = [f"{slot_in_words(slot)} {'of any kind' if x == DONTCARE else x}" for slot, x in constraints]
    wishes += [f"the {NAME} {goal.wanted_name}"] if goal.wanted_name else []
    requests = [slot_in_words(slot) for slot in goal.requests]
    return (
        f"You are looking for a {domain.type}: {', '.join(wishes) or 'any one'}. "
        f"Find out: {', '.join(requests)}. Say goodbye when you have it."
    )


def why_failed(domain: Domain, info: Mapping[str, Any]) -> str:
    """What was missing in a dialogue that failed, from the info at its end (`GoalOriented`)."""
    offers = [act.value for acts in info["system_acts"] for act in acts if (act.intent, act.slot) == ("inform", NAME)]
    name = next((offer for offer in reversed(offers) if offer != NOTHING), None)
    entity = domain.entity(name) if name else None
    if name is None:
        return f"no {domain.type} was offered"
    if entity is None:
        return f"{name} is not in the data base"
    constraints = info["goal"]["constraints"]
    wrong = [
        f"{slot_in_words(slot)} {entity[slot]}, not {value}"
        for slot, value in constraints.items()
        if value not in (entity[slot], DONTCARE)
    ]
    if wrong:
        return f"{name} does not fit: {', '.join(wrong)}"
    turns = map(without_contradictions, info["system_acts"])
    informed = {act for acts in turns for act in acts if act.intent == "inform"}
    requests = [slot for slot in info["goal"]["requests"] if slot != NAME]
    missing = [slot_in_words(slot) for slot in requests if Act("inform", slot, entity[slot]) not in informed]
    if missing:
        return f"what was not said, or not rightly: the {', '.join(missing)} of {name}"
    return "the dialogue did not end with a goodbye, or it went on to another offer"
