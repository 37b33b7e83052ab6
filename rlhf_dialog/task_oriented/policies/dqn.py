"""Double deep Q-network with masks (van Hasselt et al., 1509.06461). N rows, D features, A actions."""

from collections.abc import Sequence
from random import Random

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional

from rlhf_dialog.task_oriented.policies.arguments import STRICT, Sizes, ranged
from rlhf_dialog.task_oriented.policies.base import Actions, Extras, Features, Masks, PolicyFactory
from rlhf_dialog.task_oriented.policies.network import NetworkPair, mlp
from rlhf_dialog.task_oriented.policies.replay import ReplayArguments, ReplayLearner


@dataclass(frozen=True, config=STRICT)
class DoubleQArguments(ReplayArguments):
    """batch_size: turns for each step; target_share: how far the target network follows in each step"""

    hidden_sizes: Sizes = (300, 100)
    batch_size: int = ranged(64, 1, 10**9)
    steps_per_dialogue: float = ranged(2.0, 0.0, 1e6)
    target_share: float = ranged(0.02, 1e-9, 1.0)


@dataclass(frozen=True, config=STRICT)
class DQNArguments(DoubleQArguments):
    """epsilon: probability of a random action; it falls to 0 over the first `epsilon_dialogues`"""

    epsilon: float = ranged(0.3, 0.0, 1.0)
    epsilon_dialogues: int = ranged(1000, 1, 10**9)


class DoubleQ(ReplayLearner):
    """Values of actions from replay, which double Q-learning teaches; a subclass explores in its own way."""

    args: DoubleQArguments

    def _networks(self, generator: torch.Generator) -> NetworkPair:
        sizes = [self.setting.num_features, *self.args.hidden_sizes, self.setting.num_actions]
        return NetworkPair(self._network(sizes, generator), nn.Identity(), self.args.lr, self.args.target_share)

    @torch.no_grad()
    def targets(self, turns: dict[str, Tensor]) -> Tensor:
        """(N,): reward, and after a turn that is not the last, the target network's value of the action that this one takes."""
        after = turns["next_observations"]
        chosen = self._best(self.learner.policy(after), turns["next_masks"])
        values = self.learner.slow(after).gather(1, chosen[:, None])[:, 0]
        return turns["rewards"] + self.args.gamma * values.masked_fill(turns["ended"], 0.0)

    def _best(self, values: Tensor, masks: Tensor) -> Tensor:
        return best(values, masks)

    def _network(self, sizes: Sequence[int], generator: torch.Generator) -> nn.Module:
        return mlp(sizes, generator, 0.1, nn.ReLU)

    def _loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        turns = self.replay.turns(self.args.batch_size, generator)
        values = self.learner.policy(turns["observations"]).gather(1, turns["actions"][:, None])[:, 0]
        return functional.mse_loss(values, self.targets(turns)), {"dqn/value": values.mean().item()}


@PolicyFactory.register("dqn")
class DQN(DoubleQ):
    """Values of actions from replay; with the probability epsilon the policy draws any allowed action.

    Without exploration the target network acts: an average over steps is steadier than the last one (Polyak and Juditsky 1992).
    """

    arguments = DQNArguments
    args: DQNArguments

    @property
    def epsilon(self) -> float:
        return self.args.epsilon * max(0.0, 1 - self.num_dialogues / self.args.epsilon_dialogues)

    @torch.inference_mode()
    def act(
        self, observations: Features, masks: Masks, deterministic: bool, streams: Sequence[Random] = ()
    ) -> tuple[Actions, Extras]:
        """observations (N, D), masks (N, A) -> actions (N,): the allowed ones of the highest value, or random ones."""
        values = (self.learner.slow if deterministic else self.learner.policy)(torch.from_numpy(observations))
        actions = self._best(values, torch.from_numpy(masks)).numpy()
        for row, stream in enumerate([] if deterministic else streams):
            if stream.random() < self.epsilon:
                actions[row] = stream.choice(np.flatnonzero(masks[row]).tolist())
        return actions, {}


def best(values: Tensor, masks: Tensor) -> Tensor:
    """The actions (N,) of the highest value among the allowed ones, from values and masks (N, A)."""
    return values.masked_fill(~masks, -torch.inf).argmax(dim=1)
