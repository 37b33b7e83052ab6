"""Dialogues with environments as what a run is trained on: numbered from 0 on, each with random streams of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.environments.base import Environment, Limits
from rlhf_dialog.models.chat_agent import Speaker
from rlhf_dialog.models.loading import Models
from rlhf_dialog.rewards.scoring import Scorer
from rlhf_dialog.training.rollout import Rollout, collect

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


@dataclass(frozen=True)
class Deal:
    """What `episodes.play` needs of B dialogues: environments, seeds of their users, streams of the policy, and what
    `Dialogue.meta` holds."""

    environments: list[Environment]
    seeds: list[int]
    streams: list[torch.Generator]
    metas: list[dict[str, Any]]


class Simulated:
    """The dialogues of a run with environments that `make` builds; they are played within the `limits`.

    Dialogue n of a split depends on (seed, split, n) and the policy alone: neither the number of dialogues side by side nor that
    of processes changes it. Environments are built when they are needed, and used again for later dialogues.
    """

    def __init__(self, make: Callable[[], Environment], seed: int, limits: Limits, split: str = "train"):
        self.make, self.seed, self.limits, self.split = make, seed, limits, split
        self.environments: list[Environment] = []

    def __getitem__(self, number: int) -> Dialogue:
        """Dialogue `number` before anything was said."""
        return Dialogue([], meta={"split": self.split, "index": number})

    def deal(self, dialogues: Sequence[Dialogue]) -> Deal:
        """These dialogues, each as `__getitem__` gives it; the copies of one number have the same user and other streams."""
        count = len(dialogues)
        self.environments += [self.make() for _ in range(count - len(self.environments))]
        metas = [dialogue.meta for dialogue in dialogues]
        numbers = [meta["index"] for meta in metas]
        copies = [numbers[:i].count(number) for i, number in enumerate(numbers)]
        streams = [self._stream(*pair) for pair in zip(numbers, copies, strict=True)]
        return Deal(self.environments[:count], [self.seed_of(n) for n in numbers], streams, metas)

    def collect(
        self, dialogues: Sequence[Dialogue], speaker: Speaker, scorer: Scorer, models: Models, keep_features: bool
    ) -> Rollout:
        """The rollout of these dialogues, see `rollout.collect`."""
        deal = self.deal(dialogues)
        return collect(
            deal.environments, speaker, scorer, models, deal.seeds, keep_features, self.limits, deal.streams, deal.metas
        )

    def seed_of(self, number: int) -> int:
        """The seed of the user of dialogue `number`."""
        return self._drawn(f"{number}/user")

    def _stream(self, number: int, copy: int) -> torch.Generator:
        return torch.Generator().manual_seed(self._drawn(f"{number}/policy/{copy}"))

    def _drawn(self, name: str) -> int:
        return Random(f"{self.seed}/{self.split}/{name}").randrange(LARGEST_SEED)
