"""A dialogue policy of your own: the action with the largest mean return so far, whatever the user says (a bandit).

python scripts/train_policy.py --config restaurant.yaml --register examples/average_return.py --policy.id average_return --epoch 3
python scripts/evaluate_policy.py --agent runs/restaurant/agent --register examples/average_return.py --trust_config

N dialogues, D features, A actions.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np

from rlhf_dialog.task_oriented.policies.base import Actions, Episode, Extras, Features, Masks, PolicyFactory, PolicySpec


@PolicyFactory.register("average_return")
class AverageReturn:
    """Takes the allowed action with the largest mean return, in training with probability `epsilon` any allowed one.

    Each action begins with one return of `first`, so that a large `first` lets all be tried.
    """

    def __init__(self, setting: PolicySpec, epsilon: float = 0.1, first: float = 20.0):
        self.epsilon = epsilon
        self.sums, self.counts = np.full(setting.num_actions, first), np.ones(setting.num_actions)

    def act(
        self, observations: Features, masks: Masks, deterministic: bool, streams: Sequence[Random]
    ) -> tuple[Actions, Extras]:
        actions = np.where(masks, self.sums / self.counts, -np.inf).argmax(axis=1)
        if not deterministic:
            for row, stream in enumerate(streams):
                if stream.random() < self.epsilon:
                    actions[row] = stream.choice(np.flatnonzero(masks[row]))
        return actions, {}

    def observe(self, episode: Episode) -> None:
        """Add the return of each turn, the undiscounted sum of the rewards from there on, to its action."""
        np.add.at(self.sums, episode.actions, episode.rewards[::-1].cumsum()[::-1])
        np.add.at(self.counts, episode.actions, 1)

    def update(self) -> dict[str, float]:
        return {"average_return/best": float((self.sums / self.counts).max())}

    def save(self, folder: Path) -> None:
        (folder / "policy.json").write_text(json.dumps([self.sums.tolist(), self.counts.tolist()]), encoding="utf-8")

    def load(self, folder: Path) -> None:
        self.sums, self.counts = np.array(json.loads((folder / "policy.json").read_text(encoding="utf-8")))
