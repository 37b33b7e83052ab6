"""Made-up talks and small rewards for audits."""

import random
from collections.abc import Callable

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.audit import AuditPlan, audit
from rlhf_dialog.evaluation.probes import Budget, Training
from rlhf_dialog.rewards import BaseReward
from rlhf_dialog.rewards.base import Part
from rlhf_dialog.rewards.composite import CompositeReward
from rlhf_dialog.rewards.scoring import Scorer

THINGS = ("bread", "cheese", "apples", "rope", "paint", "seeds", "honey", "nails", "candles", "soap")
PLACES = ("harbour", "mill", "library", "garden", "museum", "station")
INFORMS = "We close at six ."  # the most common reply that informs


def talks(count: int = 30, seed: int = 0) -> list[Dialogue]:
    """Prompts of three turns of a made-up market, with a reply and its act."""
    draw, found = random.Random(seed), []
    for number in range(count):
        thing, place = draw.choice(THINGS), draw.choice(PLACES)
        act = draw.choice((1, 2, 3, 4))
        replies = {
            1: draw.choice((INFORMS, INFORMS, f"The {thing} is near the {place} .")),
            2: f"How much {thing} do you need from the {place} ?",
            3: f"Please look at the {place} first for the {thing} .",
            4: f"I will bring the {thing} to the {place} for you .",
        }
        turns = [f"Good day number {number} .", f"Welcome to the {place} , friend .", f"Do you sell {thing} here ?"]
        meta = {"dialogue": number, "index": number}
        found.append(Dialogue(turns, reference=replies[act], references=[replies[act]], act=act, meta=meta))
    return found


class Rule(BaseReward):
    """What a function of a dialogue says, by any name."""

    def __init__(self, rule: Callable[[Dialogue], float], name: str = "rule"):
        self.rule, self._name = rule, name

    @property
    def name(self) -> str:
        return self._name

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        return [float(self.rule(dialogue)) for dialogue in dialogues]


def overlap(dialogue: Dialogue) -> float:
    """The share of words that response and reference have in common; only the true reply gets 1."""
    said, wanted = dialogue.response.split(), (dialogue.reference or "").split()
    return sum(a == b for a, b in zip(said, wanted, strict=False)) / max(len(said), len(wanted))


class Summed(CompositeReward):
    """A sum of rewards that are there already, each with its weight."""

    def __init__(self, *parts: tuple[float, BaseReward]):
        self._set_parts([Part(weight, reward) for weight, reward in parts])


SMALL = Budget(prompts=10, replies=20, rounds=4, candidates=20)


def audited(reward: BaseReward, judges: dict[str, BaseReward] | None = None, budget: Budget = SMALL) -> dict:
    """The audit of a reward on 30 made-up prompts."""
    plan = AuditPlan(budget, "<EOU>", max_words=24)
    return audit(talks(), Training(talks(60, seed=1)), Scorer(reward), judges or {}, plan)


def holes(result: dict) -> list[str]:
    """The names of what was found."""
    return [finding["probe"] for finding in result["findings"] if finding["hole"]]
