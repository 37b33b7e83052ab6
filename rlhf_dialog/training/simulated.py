"""Dialogues with environments as what a run is trained on: numbered from 0 on, each with random streams of its own."""

from collections.abc import Callable, Sequence
from random import Random

import torch

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.environments.base import Environment, EpisodeLimits
from rlhf_dialog.training.episodes import EpisodeInputs

LARGEST_SEED = 2**31


class DialogueCounter:
    """The numbers of the dialogues, from 0 on."""

    def __init__(self) -> None:
        self.next = 0

    def take(self, n: int) -> list[int]:
        """The next `n` numbers."""
        self.next += n
        return list(range(self.next - n, self.next))

    def state_dict(self) -> dict[str, int]:
        """The state from which `load_state_dict` continues with the number that follows."""
        return {"dialogues": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Move to a stored position."""
        self.next = state["dialogues"]


class Simulated:
    """The dialogues of a run with environments that `make` builds; they are played within the `limits`.

    Dialogue n of a split depends on (seed, split, n) and the policy alone: neither the number of dialogues side by side nor that
    of processes changes it. Environments are built when they are needed, and used again for later dialogues.
    """

    def __init__(self, make: Callable[[], Environment], seed: int, limits: EpisodeLimits, split: str = "train"):
        self.make, self.seed, self.limits, self.split = make, seed, limits, split
        self.environments: list[Environment] = []

    def __getitem__(self, number: int) -> Dialogue:
        """Dialogue `number` before anything was said."""
        return Dialogue([], meta={"split": self.split, "index": number})

    def deal(self, dialogues: Sequence[Dialogue]) -> EpisodeInputs:
        """These dialogues, each as `__getitem__` gives it; the copies of one number have the same user and other streams."""
        count = len(dialogues)
        self.environments += [self.make() for _ in range(count - len(self.environments))]
        metas = [dialogue.meta for dialogue in dialogues]
        numbers = [meta["index"] for meta in metas]
        copies = [numbers[:i].count(number) for i, number in enumerate(numbers)]
        streams = [self._stream(*pair) for pair in zip(numbers, copies, strict=True)]
        seeds = [self.seed_of(number) for number in numbers]
        return EpisodeInputs(self.environments[:count], self.limits, seeds, streams, metas)

    def seed_of(self, number: int) -> int:
        """The seed of the user of dialogue `number`."""
        return self._drawn(f"{number}/user")

    def _stream(self, number: int, copy: int) -> torch.Generator:
        return torch.Generator().manual_seed(self._drawn(f"{number}/policy/{copy}"))

    def _drawn(self, name: str) -> int:
        return Random(f"{self.seed}/{self.split}/{name}").randrange(LARGEST_SEED)
