"""The handcrafted policy for several domains: fixed rules on the observation, the line that a learner has to pass."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.data.domains import MultiDomain
from rlhf_dialog.environments.multi_domain.actions import action_names
from rlhf_dialog.environments.multi_domain.observations import MultiLayout


class HandcraftedMulti:
    """In the domain of which the user spoke last: books what is wanted, answers, says that nothing fits, asks for what is
    needed, offers, or asks for the booking; then answers what is open elsewhere.

    An action that the mask forbids gives way to the next rule; the last one, `reqmore`, is always allowed.
    """

    def __init__(self, domain: MultiDomain):
        self.layout = MultiLayout(domain)
        self.index = {name: number for number, name in enumerate(action_names(domain))}

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
        places = self.layout.places
        current = next((name for name, own in places.items() if row[own["current"]]), None)
        if current is not None:
            yield from self._in(current, places[current], row)
        yield from (f"{name}_{intent}" for name in places for intent in ("inform", "book"))
        yield "reqmore"

    def _in(self, name: str, own: dict[str, int], row: list[float]) -> Iterator[str]:
        """The rules for the domain of which the user spoke last, the first one first."""
        yield from (f"{name}_book", f"{name}_inform", f"{name}_nooffer")
        if not row[own["ready"]] or self.layout.domain.services[name].made_from:
            yield f"{name}_request"
        if not row[own["offered"]]:
            yield f"{name}_recommend"
        yield f"{name}_request_booking"
