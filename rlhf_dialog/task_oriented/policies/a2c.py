"""Advantage actor-critic with optional importance weights (1707.00130). N turns, A actions; pi: the policy, mu: what acted.

The advantage is that of temporal differences: carried back over later turns by lambda, weighted as in V-trace (1802.01561).
"""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional

from rlhf_dialog.task_oriented.policies.arguments import STRICT, ranged
from rlhf_dialog.task_oriented.policies.base import PolicyFactory
from rlhf_dialog.task_oriented.policies.network import NetworkPair, masked_logprobs, mlp
from rlhf_dialog.task_oriented.policies.replay import ReplayArguments, ReplayLearner


@dataclass(frozen=True, config=STRICT)
class A2CArguments(ReplayArguments):
    """td_lambda: 0: only the next turn's value; 1: whole returns; batch_size: dialogues for each step

    importance_weights: learn from all dialogues of the replay, weighted by pi/mu, at most `truncation`; False: learn from the
    newest dialogues as if the policy of now had acted
    """

    td_lambda: float = ranged(0.95, 0.0, 1.0)
    importance_weights: bool = True
    truncation: float = ranged(1.0, 0.0, 1e6)
    entropy_coef: float = ranged(0.01, 0.0, 1e6)


@PolicyFactory.register("a2c")
class A2C(ReplayLearner):
    arguments = A2CArguments
    args: A2CArguments

    def _networks(self, generator: torch.Generator, slow_share: float = 0.0) -> NetworkPair:
        sizes = [self.setting.num_features, *self.args.hidden_sizes]
        policy = mlp([*sizes, self.setting.num_actions], generator, 0.01)
        critic = mlp([*sizes, 1], generator, 0.1)
        return NetworkPair(policy, critic, self.args.lr, slow_share)

    def _loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        replay, num = self.replay, self.args.batch_size
        turns = replay.whole(num, generator) if self.args.importance_weights else replay.newest(num)
        logprobs = masked_logprobs(self.learner.policy(turns["observations"]), turns["masks"])
        values = self.learner.critic(turns["observations"])[:, 0]
        chosen = logprobs.gather(1, turns["actions"][:, None])[:, 0]
        ratios = (
            (chosen.detach() - turns["logprobs"]).exp() if self.args.importance_weights else torch.ones_like(values)
        )
        weights = ratios.clamp(max=self.args.truncation)
        gamma, td_lambda = self.args.gamma, self.args.td_lambda
        targets, advantages = vtrace(turns["rewards"], values.detach(), weights, turns["ended"], gamma, td_lambda)
        entropy = -(logprobs.exp() * logprobs).sum(dim=1).mean()
        objective = (weights * advantages * chosen).mean() + self.args.entropy_coef * entropy
        value_loss = functional.smooth_l1_loss(values, targets)
        statistics = {"value_loss": value_loss.item(), "entropy": entropy.item(), "weight": weights.mean().item()}
        loss = value_loss - self._limit_objective(objective, turns, logprobs)
        return loss, {f"a2c/{name}": value for name, value in statistics.items()}

    def _limit_objective(self, objective: Tensor, turns: dict[str, Tensor], logprobs: Tensor) -> Tensor:
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
