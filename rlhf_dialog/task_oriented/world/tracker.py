"""The belief about the user's goal: DSTC's focus tracker."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rlhf_dialog.task_oriented.domains import NAME, Domain
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.error_channel import NBest

METHODS = ("none", "byconstraints", "byname", "byalternatives", "finished", "restart")
DISCOURSE_ACTS = ("none", "ack", "hello", "repeat", "silence", "thankyou")
DISCOURSE_ACTS_HEARD = ("silence", "repeat", "thankyou", "ack", "hello")  # the first that a turn has counts
NOTHING = "none"
Scores = dict[str, float]


@dataclass
class Belief:
    """What the system believes after a turn of the user. Probabilities are sparse: what is not in a dict has 0.

    slots: for each constraint slot and the name, value -> probability; the rest to 1 is `none`
    method: how the user looks for a venue, without `none`; discourse_act: of the last turn
    requested: slot -> probability that the user waits for it
    offered: the last venue that was offered; offers: all of them since nothing was found
    offer_happened, nothing_found: whether the last system turn offered a venue, or said that nothing fits
    """

    slots: dict[str, Scores]
    method: Scores = field(default_factory=dict)
    discourse_act: Scores = field(default_factory=dict)
    requested: Scores = field(default_factory=dict)
    offered: str = ""
    offers: list[str] = field(default_factory=list)
    offer_happened: bool = False
    nothing_found: bool = False

    def ranked_values(self, slot: str) -> list[tuple[str, float]]:
        """Values of the slot with a probability above 0, the most probable one first, without `none`."""
        scored = [(value, score) for value, score in self.slots[slot].items() if score > 0]
        return sorted(scored, key=lambda item: -item[1])

    def none(self, slot: str) -> float:
        """The probability that the user has not spoken of the slot."""
        return max(0.0, 1.0 - sum(self.slots[slot].values()))


class FocusTracker:
    """Adds up evidence; what is heard now pushes out what was heard before, by as much as it is believed.

    A value's probability p becomes p * q + s: s is the confidence in this value now, q what this turn leaves open of its
    slot. Denials change nothing by themselves.
    """

    def __init__(self, domain: Domain):
        self.domain = domain
        self.tracked = frozenset((*domain.constraints, NAME))
        self.reset()

    def reset(self) -> None:
        self.belief = Belief({slot: {} for slot in (*self.domain.constraints, NAME)})

    def update(self, system_acts: list[Act], n_best: NBest) -> Belief:
        """The belief after the system's turn and what was understood of the user's; the same object in every turn."""
        belief = self.belief
        self._note_offers(system_acts)
        asked_slot = next((act.slot for act in system_acts if act.intent in ("request", "select", "confirm")), "")
        confirmed = [(act.slot, act.value) for act in system_acts if act.intent == "confirm"]
        confirmed_pair = confirmed[0] if len(confirmed) == 1 else None
        new_scores: dict[str, Scores] = {}
        method: Scores = dict.fromkeys(METHODS, 0.0)
        requested: Scores = {}
        belief.discourse_act = {}
        for acts, score in n_best:
            acts = self._understood(acts, asked_slot)
            for slot, value in _goals(acts, confirmed_pair).items():
                scores = new_scores.setdefault(slot, {})
                scores[value] = scores.get(value, 0.0) + score
            for slot in {act.slot for act in acts if act.intent in ("request", "confirm")}:
                requested[slot] = requested.get(slot, 0.0) + score
            method[_method(acts, belief.offered)] += score
            intents = {act.intent for act in acts}
            discourse_act = next((name for name in DISCOURSE_ACTS_HEARD if name in intents), "none")
            belief.discourse_act[discourse_act] = belief.discourse_act.get(discourse_act, 0.0) + score
        for slot, scores in new_scores.items():
            belief.slots[slot] = _shift_focus(belief.slots[slot], scores, 1.0 - sum(scores.values()))
        open_method = method.pop("none")
        belief.method = _shift_focus(belief.method, {m: s for m, s in method.items() if s}, open_method)
        answered = {act.slot for act in system_acts if act.intent == "inform"}
        kept = {slot: score for slot, score in belief.requested.items() if slot not in answered}
        for slot, score in requested.items():
            kept[slot] = min(1.0, kept.get(slot, 0.0) + score)
        belief.requested = kept
        return belief

    def _note_offers(self, system_acts: list[Act]) -> None:
        belief = self.belief
        informs = bool(system_acts) and system_acts[0].intent == "inform"
        name = next((act.value for act in system_acts if act.slot == NAME and act.intent == "inform"), "")
        belief.nothing_found = informs and name == NOTHING
        belief.offer_happened = informs and bool(name) and name != NOTHING
        if belief.nothing_found:
            belief.offers.clear()
        elif belief.offer_happened:
            belief.offered = name
            belief.offers.append(name)

    def _understood(self, acts: Iterable[Act], asked_slot: str) -> list[Act]:
        """The acts with the slot that an answer leaves out, and without values of slots that are not tracked."""
        understood = []
        for act in acts:
            if act.slot in self.tracked or act.intent == "request" or (not act.slot and not act.value):
                understood.append(act)
            elif not act.slot and asked_slot in self.tracked:
                understood.append(Act(act.intent, asked_slot, act.value))
        return understood


def _goals(acts: list[Act], confirmed_pair: tuple[str, str] | None) -> dict[str, str]:
    goals = {}
    for act in acts:
        if act.intent == "inform":
            goals[act.slot] = act.value
        elif act.intent == "affirm" and confirmed_pair:
            goals[confirmed_pair[0]] = confirmed_pair[1]
    return goals


def _method(acts: list[Act], offered: str) -> str:
    intents = {act.intent for act in acts}
    if "reqalts" in intents:
        return "byalternatives"
    if "bye" in intents:
        return "finished"
    if "inform" in intents:
        return "byname" if any(a.slot == NAME and a.intent == "inform" for a in acts) else "byconstraints"
    if "restart" in intents:
        return "restart"
    asks = "deny" not in intents and ("request" in intents or "confirm" in intents)
    return "byname" if asks and offered else "none"


def _shift_focus(before: Scores, now: Scores, left: float) -> Scores:
    """p * left + s, divided by the sum where rounding makes it more than 1."""
    left = min(1.0, max(0.0, left))
    scores = {key: score * left for key, score in before.items()} if left else {}
    for key, score in now.items():
        scores[key] = scores.get(key, 0.0) + score
    total = sum(scores.values())
    return {key: score / total for key, score in scores.items()} if total > 1 else scores
