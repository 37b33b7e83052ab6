"""Policies that learn nothing: the handcrafted ones, fixed rules that a learner has to pass, and the random one."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np

from rlhf_dialog.task_oriented.domains import Domain, MultiDomain
from rlhf_dialog.task_oriented.policies.base import Actions, Episode, Extras, Features, Masks, PolicyFactory, PolicySpec
from rlhf_dialog.task_oriented.world.multi_domain.actions import MultiLayout
from rlhf_dialog.task_oriented.world.summary import ACCEPTED_TO_INFORM, NUM_COUNTS, Layout, accepted_above, action_names
from rlhf_dialog.task_oriented.world.tracker import DISCOURSE_ACTS, METHODS

SURE, LIKELY, POSSIBLE, CLOSE = 0.8, 0.6, 0.3, 0.2
REQUESTED_ABOVE = 0.5


class FixedPolicy:
    """Learns nothing, and has no files."""

    def observe(self, episode: Episode) -> None: ...

    def update(self) -> dict[str, float]:
        return {}

    def save(self, folder: str | Path) -> None: ...

    def load(self, folder: str | Path) -> None: ...


class Rules(FixedPolicy):
    """A policy of fixed rules: the first action that they wish and the mask allows. `index` numbers the actions by name."""

    index: dict[str, int]

    def act(self, observations: Features, masks: Masks, deterministic: bool = True) -> tuple[Actions, Extras]:
        """observations (N, D), masks (N, A) -> actions (N,), and nothing else; nothing is random."""
        chosen = []
        for row, allowed in zip(observations.tolist(), masks.tolist(), strict=True):
            numbers = (self.index[name] for name in self._wishes(row) if name in self.index)
            chosen.append(next(number for number in numbers if allowed[number]))
        return np.array(chosen, dtype=np.int64), {}

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
        layout = self.layout
        best = [sorted(row[part][:-1])[:-3:-1] for _, part, _ in self.slots]  # but for `none`, the last
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


class HandcraftedMulti(Rules):
    """In the domain of which the user spoke last: books what is wanted, answers, says that nothing fits, asks for what is
    needed, offers, or asks for the booking; then answers what is open elsewhere.

    An action that the mask forbids gives way to the next rule; the last one, `reqmore`, is always allowed.
    """

    def __init__(self, domain: MultiDomain):
        self.layout = MultiLayout(domain)
        self.index = {name: number for number, name in enumerate(self.layout.names)}

    def _wishes(self, row: list[float]) -> Iterator[str]:
        places = self.layout.places
        current = next((name for name, columns in places.items() if row[columns["current"]]), None)
        if current is not None:
            columns = places[current]
            yield from (f"{current}_book", f"{current}_inform", f"{current}_nooffer")
            if not row[columns["ready"]] or self.layout.domain.services[current].made_from:
                yield f"{current}_request"
            if not row[columns["offered"]]:
                yield f"{current}_recommend"
            yield f"{current}_request_booking"
        yield from (f"{name}_{intent}" for name in places for intent in ("inform", "book"))
        yield "reqmore"


@PolicyFactory.register("random")
class RandomPolicy(FixedPolicy):
    """Draws from the allowed actions, also when it is asked to be deterministic."""

    def __init__(self, setting: PolicySpec):
        self.setting = setting

    def act(
        self, observations: Features, masks: Masks, deterministic: bool, streams: Sequence[Random] = ()
    ) -> tuple[Actions, Extras]:
        """observations (N, D), masks (N, A) -> actions (N,) and their logprobs (N,)."""
        pairs = zip(masks, streams, strict=True)
        actions = [stream.choice(np.flatnonzero(mask).tolist()) for mask, stream in pairs]
        return np.array(actions, dtype=np.int64), {"logprobs": -np.log(masks.sum(axis=1)).astype(np.float32)}
