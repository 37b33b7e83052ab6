"""Double deep Q-network with masks (van Hasselt et al., 1509.06461). N rows, D features, A actions."""

from collections.abc import Sequence
from random import Random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rlhf_dialog.task_oriented.policies.base import Actions, Extras, Features, Masks, PolicyFactory, Setting, check_args
from rlhf_dialog.task_oriented.policies.network import NetworkPair, check_sizes, mlp
from rlhf_dialog.task_oriented.policies.replay import IN_MEMORY, ReplayLearner


@PolicyFactory.register("dqn")
class DQN(ReplayLearner):
    """Values of actions from replay; with the probability epsilon the policy draws any allowed action.

    Without exploration the target network acts: an average over steps is steadier than the last one (Polyak and Juditsky 1992).
    epsilon: falls to 0 over the first `epsilon_dialogues`; batch_size: turns for each step
    target_share: how far the target network follows in each step
    Raises UserError for an argument that cannot be used, and RunStopped when a number is not finite.
    """

    def __init__(
        self,
        setting: Setting,
        hidden_sizes: Sequence[int] = (300, 100),
        lr: float = 5e-4,
        gamma: float = 0.99,
        epsilon: float = 0.3,
        epsilon_dialogues: int = 1000,
        capacity: int = 6000,
        in_memory: int = IN_MEMORY,
        batch_size: int = 64,
        steps_per_dialogue: float = 2.0,
        target_share: float = 0.02,
        max_grad_norm: float = 10.0,
    ):
        super().__init__(setting, capacity, steps_per_dialogue, max_grad_norm, target_share, in_memory)
        check_args(float, 1e-9, 1.0, lr=lr, target_share=target_share)
        check_args(float, 0.0, 1.0, gamma=gamma, epsilon=epsilon)
        check_args(int, 1, 10**9, batch_size=batch_size, epsilon_dialogues=epsilon_dialogues)
        self.gamma, self.batch_size = gamma, batch_size
        self.first_epsilon, self.epsilon_dialogues = epsilon, epsilon_dialogues
        sizes = [setting.num_features, *check_sizes(hidden_sizes), setting.num_actions]
        network = self._network(sizes, torch.Generator().manual_seed(setting.seed))
        self.learner = NetworkPair(network, nn.Identity(), lr, slow=True)

    @property
    def epsilon(self) -> float:
        """The probability of a random action now."""
        return self.first_epsilon * max(0.0, 1 - self.num_dialogues / self.epsilon_dialogues)

    @torch.inference_mode()
    def act(
        self, observations: Features, masks: Masks, deterministic: bool = False, streams: Sequence[Random] = ()
    ) -> tuple[Actions, Extras]:
        """observations (N, D), masks (N, A) -> actions (N,): the allowed ones of the highest value, or random ones."""
        values = (self.learner.slow if deterministic else self.learner.policy)(torch.from_numpy(observations))
        actions = self._best(values, torch.from_numpy(masks)).numpy()
        for row, stream in enumerate([] if deterministic else streams):
            if stream.random() < self.epsilon:
                actions[row] = stream.choice(np.flatnonzero(masks[row]).tolist())
        return actions, {}

    @torch.no_grad()
    def targets(self, turns: dict[str, Tensor]) -> Tensor:
        """(N,): reward, and after a turn that is not the last, the target network's value of the action that this one takes."""
        after = turns["next_observations"]
        chosen = self._best(self.learner.policy(after), turns["next_masks"])
        values = self.learner.slow(after).gather(1, chosen[:, None])[:, 0]
        return turns["rewards"] + self.gamma * values.masked_fill(turns["ended"], 0.0)

    def _best(self, values: Tensor, masks: Tensor) -> Tensor:
        return best(values, masks)

    def _network(self, sizes: Sequence[int], generator: torch.Generator) -> nn.Module:
        return mlp(sizes, generator, 0.1, nn.ReLU)

    def _loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        turns = self.replay.turns(self.batch_size, generator)
        values = self.learner.policy(turns["observations"]).gather(1, turns["actions"][:, None])[:, 0]
        return functional.mse_loss(values, self.targets(turns)), {"dqn/value": values.mean().item()}


def best(values: Tensor, masks: Tensor) -> Tensor:
    """The actions (N,) of the highest value among the allowed ones, from values and masks (N, A)."""
    return values.masked_fill(~masks, -torch.inf).argmax(dim=1)
