"""The handcrafted policy: fixed rules on the beliefs, the line that a learner has to pass."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.task_oriented.domains import Domain
from rlhf_dialog.task_oriented.world.observations import NUM_COUNTS, Layout
from rlhf_dialog.task_oriented.world.summary import accepted_above
from rlhf_dialog.task_oriented.world.summary_actions import ACCEPTED_TO_INFORM, action_names
from rlhf_dialog.task_oriented.world.tracker import DISCOURSE_ACTS, METHODS

SURE, LIKELY, POSSIBLE, CLOSE = 0.8, 0.6, 0.3, 0.2
REQUESTED_ABOVE = 0.5


class Rules:
    """A policy of fixed rules: the first action that they wish and the mask allows. `index` numbers the actions by name."""

    index: dict[str, int]

    def act(
        self, observations: NDArray[np.float32], masks: NDArray[np.bool_], deterministic: bool = True
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """observations (N, D), masks (N, A) -> actions (N,), and nothing else; nothing is random."""
        chosen = [self._choose(row, mask) for row, mask in zip(observations, masks, strict=True)]
        return np.array(chosen, dtype=np.int64), {}

    def observe(self, episode: Any) -> None:
        """Nothing is learned."""

    def update(self) -> dict[str, float]:
        """No metrics."""
        return {}

    def save(self, folder: str | Path) -> None:
        """Nothing is stored."""

    def load(self, folder: str | Path) -> None:
        """Nothing is stored."""

    def _choose(self, observation: NDArray[np.float32], mask: NDArray[np.bool_]) -> int:
        row, allowed = observation.tolist(), mask.tolist()
        numbers = (self.index[name] for name in self._wishes(row) if name in self.index)
        return next(number for number in numbers if allowed[number])

    def _wishes(self, row: list[float]) -> Iterator[str]:
        raise NotImplementedError


class Handcrafted(Rules):
    """Answers what the user wants now; else confirms what is unsure, offers a venue, or asks the next slot.

    An action that the mask forbids gives way to the next rule.
    """

    def __init__(self, domain: Domain):
        self.layout = Layout(domain)
        self.index = {name: number for number, name in enumerate(action_names(domain))}
        self.slots = [
            (slot, part, accepted_above(len(domain.constraints[slot]))) for slot, part in self.layout.slots.items()
        ]

    def _wishes(self, row: list[float]) -> Iterator[str]:
        """The actions of the rules that apply, the first rule first; a request, which is always allowed, is the last."""
        layout, best = self.layout, [_best_two(row[part]) for _, part, _ in self.slots]
        accepted = [
            first > least and first >= row[part.stop - 1]
            for (_, part, least), (first, _) in zip(self.slots, best, strict=True)
        ]
        yield from self._globally(row, sum(accepted))
        for (slot, _, _), (first, second) in zip(self.slots, best, strict=True):
            if POSSIBLE < first < SURE:
                yield f"select_{slot}" if first <= LIKELY and first - second < CLOSE else f"confirm_{slot}"
        nothing, one, _, _, distinguishable = row[layout.counts][-NUM_COUNTS:]
        if nothing or one or not distinguishable or all(accepted):
            waiting = any(score > REQUESTED_ABOVE for score in row[layout.requested])
            if waiting and row[layout.offer_happened]:
                yield "inform_byname"
            yield "inform"
        yield from (
            f"request_{slot}" for (slot, _, _), (first, _) in zip(self.slots, best, strict=True) if first < SURE
        )
        yield from ("reqmore", f"request_{self.slots[0][0]}")

    def _globally(self, row: list[float], num_accepted: int) -> Iterator[str]:
        """What the user's method and discourse act ask for."""
        method = dict(zip(METHODS, row[self.layout.method], strict=True))
        top = max(method, key=lambda name: method[name])
        discourse = dict(zip(DISCOURSE_ACTS, row[self.layout.discourse_act], strict=True))
        if top in ("none", "byconstraints") and num_accepted >= ACCEPTED_TO_INFORM:
            yield "inform"
        elif top == "byalternatives":
            yield "inform_alternatives"
        elif top == "byname":
            yield "inform_byname"
        elif top == "finished":
            yield "bye"
        elif discourse["thankyou"] > REQUESTED_ABOVE or discourse["ack"] > REQUESTED_ABOVE:
            yield "reqmore"


def _best_two(scores: list[float]) -> tuple[float, float]:
    """The two largest probabilities of a slot's values, without `none`, which is the last."""
    second, first = sorted(scores[:-1])[-2:]
    return first, second
