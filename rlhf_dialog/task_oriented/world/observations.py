"""The observation of the act-level environment: one vector of probabilities, whose places follow from the domain."""

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.task_oriented.domains import DONTCARE, Domain
from rlhf_dialog.task_oriented.world.summary import Summary
from rlhf_dialog.task_oriented.world.tracker import DISCOURSE_ACTS, METHODS, Belief

NUM_COUNTS = 5


class Layout:
    """Where the parts of an observation lie, and how a belief becomes one. D = `size`.

    slots: constraint slot -> slice of its values in the ontology's order, then `dontcare`, then `none`
    method, discourse_act, requested: slices; requested has the domain's requestable slots in their order
    offer_happened, nothing_found: indices; counts: slice, five numbers (`Summary.counts`) for each constraint slot
    """

    def __init__(self, domain: Domain):
        self.domain, start = domain, 0
        self.slots: dict[str, slice] = {}
        self._places: dict[str, dict[str, int]] = {}
        for slot, values in domain.constraints.items():
            self.slots[slot] = slice(start, start + len(values) + 2)
            self._places[slot] = {value: start + n for n, value in enumerate((*values, DONTCARE))}
            start = self.slots[slot].stop
        self.method = slice(start, start + len(METHODS))
        self.discourse_act = slice(self.method.stop, self.method.stop + len(DISCOURSE_ACTS))
        self.requested = slice(self.discourse_act.stop, self.discourse_act.stop + len(domain.requestable))
        self.offer_happened, self.nothing_found = self.requested.stop, self.requested.stop + 1
        self.counts = slice(self.nothing_found + 1, self.nothing_found + 1 + NUM_COUNTS * len(domain.constraints))
        self.size = self.counts.stop
        self._none = [part.stop - 1 for part in self.slots.values()]

    def encode(self, belief: Belief, summary: Summary) -> NDArray[np.float32]:
        """The observation, (D,), each number from 0 to 1."""
        vector = np.zeros(self.size, dtype=np.float32)
        for (slot, places), none in zip(self._places.items(), self._none, strict=True):
            left = 1.0
            for value, score in summary.ranked[slot]:
                left -= score
                if value in places:
                    vector[places[value]] = min(score, 1.0)
            vector[none] = max(left, 0.0)
        methods = [belief.method.get(name, 0.0) for name in METHODS]
        methods[0] = max(0.0, 1.0 - sum(methods))
        vector[self.method] = methods
        vector[self.discourse_act] = [belief.discourse_act.get(name, 0.0) for name in DISCOURSE_ACTS]
        vector[self.requested] = [belief.requested.get(slot, 0.0) for slot in self.domain.requestable]
        vector[self.offer_happened], vector[self.nothing_found] = belief.offer_happened, belief.nothing_found
        vector[self.counts] = [number for counts in summary.counts for number in counts]
        return np.clip(vector, 0.0, 1.0, out=vector)
