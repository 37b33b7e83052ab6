"""Advantage actor-critic with optional importance weights (1707.00130). N turns, A actions; pi: the policy, mu: what acted.

The advantage is that of temporal differences: carried back over later turns by lambda, weighted as in V-trace (1802.01561).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from rlhf_dialog.task_oriented.policies.base import PolicyFactory, Setting, check_args
from rlhf_dialog.task_oriented.policies.network import NetworkPair, check_sizes, masked_logprobs, mlp
from rlhf_dialog.task_oriented.policies.replay import IN_MEMORY, ReplayLearner


@PolicyFactory.register("a2c")
class A2C(ReplayLearner):
    """A policy and a critic.

    importance_weights: learn from all dialogues of the replay, weighted by pi/mu, at most `truncation`; False: learn from the
    newest dialogues as if the policy of now had acted
    td_lambda: 0: only the next turn's value; 1: whole returns; batch_size: dialogues for each step
    Raises UserError for an argument that cannot be used, and RunStopped when a number is not finite.
    """

    has_average = False

    def __init__(
        self,
        setting: Setting,
        hidden_sizes: Sequence[int] = (200, 75),
        lr: float = 5e-4,
        gamma: float = 0.99,
        td_lambda: float = 0.95,
        importance_weights: bool = True,
        truncation: float = 1.0,
        entropy_coef: float = 0.01,
        capacity: int = 6000,
        in_memory: int = IN_MEMORY,
        batch_size: int = 16,
        steps_per_dialogue: float = 1.0,
        max_grad_norm: float = 10.0,
    ):
        super().__init__(setting, capacity, steps_per_dialogue, max_grad_norm, in_memory=in_memory)
        check_args(float, 1e-9, 1.0, lr=lr)
        check_args(float, 0.0, 1.0, gamma=gamma, td_lambda=td_lambda)
        check_args(float, 0.0, 1e6, truncation=truncation, entropy_coef=entropy_coef)
        check_args(int, 1, 10**6, batch_size=batch_size)
        self.gamma, self.td_lambda, self.entropy_coef = gamma, td_lambda, entropy_coef
        self.importance_weights, self.truncation, self.batch_size = importance_weights, truncation, batch_size
        generator = torch.Generator().manual_seed(setting.seed)
        sizes = [setting.num_features, *check_sizes(hidden_sizes)]
        self.learner = NetworkPair(
            mlp([*sizes, setting.num_actions], generator, 0.01),
            mlp([*sizes, 1], generator, 0.1),
            lr,
            slow=self.has_average,
        )

    def _loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        replay, num = self.replay, self.batch_size
        turns = replay.whole(num, generator) if self.importance_weights else replay.newest(num)
        logprobs = masked_logprobs(self.learner.policy(turns["observations"]), turns["masks"])
        values = self.learner.critic(turns["observations"])[:, 0]
        chosen = logprobs.gather(1, turns["actions"][:, None])[:, 0]
        ratios = (chosen.detach() - turns["logprobs"]).exp() if self.importance_weights else torch.ones_like(values)
        weights = ratios.clamp(max=self.truncation)
        targets, advantages = vtrace(
            turns["rewards"], values.detach(), weights, turns["ended"], self.gamma, self.td_lambda
        )
        entropy = -(logprobs.exp() * logprobs).sum(dim=1).mean()
        objective = (weights * advantages * chosen).mean() + self.entropy_coef * entropy
        value_loss = functional.smooth_l1_loss(values, targets)
        statistics = {"value_loss": value_loss.item(), "entropy": entropy.item(), "weight": weights.mean().item()}
        loss = value_loss - self._trusted(objective, turns, logprobs)
        return loss, {f"a2c/{name}": value for name, value in statistics.items()}

    def _trusted(self, objective: Tensor, turns: dict[str, Tensor], logprobs: Tensor) -> Tensor:
        """What the policy raises."""
        return objective


def vtrace(
    rewards: Tensor, values: Tensor, weights: Tensor, ended: Tensor, gamma: float, td_lambda: float
) -> tuple[Tensor, Tensor]:
    """Targets of the critic and advantages, (N,) each, of dialogues one after the other; `ended`: the last turns.

    With weights of 1 these are TD(lambda) and GAE.
    """
    targets, advantages, after, trace = [], [], 0.0, 0.0
    rows = zip(*(column.tolist() for column in (rewards, values, weights, ended)), strict=True)
    for reward, value, weight, is_last in reversed(list(rows)):
        after, trace = (0.0, 0.0) if is_last else (after, trace)
        delta = reward + gamma * after - value
        advantages.append(delta + gamma * td_lambda * trace)
        trace = weight * delta + gamma * td_lambda * min(1.0, weight) * trace
        targets.append(value + trace)
        after = value
    return torch.tensor(targets[::-1]), torch.tensor(advantages[::-1])
