"""Did the dialogue do what the user wanted? Computed from the goal and the system's acts alone, so that anybody can check it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlhf_dialog.task_oriented.domains import NAME, Domain
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.goals import Goal
from rlhf_dialog.task_oriented.world.tracker import NOTHING


@dataclass(frozen=True)
class DialogueOutcome:
    """success: the venue that was offered last fits the goal as it was at the end, and every request was answered with
    that venue's own value. precision, recall, f1 of informed slots: right answers to requests are right; informed slots
    that were neither requested nor constraints are wrong; requests without a right answer are missing. They are 1 where
    nothing was asked."""

    success: bool
    precision: float
    recall: float
    f1: float


def evaluate(domain: Domain, goal: Goal, system_turns: Sequence[Sequence[Act]]) -> DialogueOutcome:
    """The outcome of a dialogue; `goal` is the goal at its end."""
    informed: dict[str, dict[str, str]] = {}
    venues: list[str] = []
    for acts in system_turns:
        venues = _venues(acts) or venues
        if len(venues) == 1:
            values = informed.setdefault(venues[0], {})
            values.update((act.slot, act.value) for act in acts if act.intent == "inform" and act.slot != NAME)
    outcomes = [_judge_venue(domain, goal, venue, informed.get(venue, {})) for venue in venues] or [_failure(goal)]
    return max(outcomes, key=lambda outcome: (outcome.success, outcome.f1))


class Evaluator:
    """The verdict on dialogues in words, in which a system can name any number of venues, and of values.

    As `evaluate`; but where the last offer names several venues, each of them must fit, and a turn that informs several values of
    a slot has answered nothing about it, also where the right one is among them.
    """

    def __init__(self, domain: Domain):
        self.domain = domain

    def __call__(self, goal: Goal, system_turns: Sequence[Sequence[Act]]) -> DialogueOutcome:
        outcome = evaluate(self.domain, goal, [without_contradictions(acts) for acts in system_turns])
        venues = next((names for acts in reversed(system_turns) if (names := _venues(acts))), [])
        entities = [self.domain.entity(venue) for venue in venues]
        fits = all(entity is not None and goal.fits(entity) for entity in entities)
        return outcome if fits else replace(outcome, success=False)


def without_contradictions(acts: Sequence[Act]) -> list[Act]:
    """The turn without the values of slots of which it informs more than one; the name of a venue is not such a slot."""
    informed = {(act.slot, act.value) for act in acts if act.intent == "inform" and act.slot != NAME}
    counts = Counter(slot for slot, _ in informed)
    return [replace(act, value="") if act.intent == "inform" and counts[act.slot] > 1 else act for act in acts]


def _venues(acts: Sequence[Act]) -> list[str]:
    """The venue that a turn offers, or the only ones that it names."""
    names = [act.value for act in acts if act.slot == NAME and act.intent in ("inform", "except")]
    return [name for name in names if name != NOTHING]


def _judge_venue(domain: Domain, goal: Goal, venue: str, informed: Mapping[str, str]) -> DialogueOutcome:
    entity = domain.entity(venue)
    if entity is None:
        return _failure(goal)
    requested = goal.requested_slots()
    right = sum(informed.get(slot) == entity[slot] for slot in requested)
    useless = sum(slot not in requested and slot not in goal.constraints for slot in informed)
    return _outcome(right == len(requested) and goal.fits(entity), right, useless, len(requested))


def _failure(goal: Goal) -> DialogueOutcome:
    return _outcome(False, 0, 0, len(goal.requested_slots()))


def _outcome(success: bool, right: int, useless: int, requested: int) -> DialogueOutcome:
    precision = right / (right + useless) if right + useless else float(not requested)
    recall = right / requested if requested else 1.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return DialogueOutcome(success, precision, recall, f1)
