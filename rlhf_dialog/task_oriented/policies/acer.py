"""Actor-critic with experience replay (1611.01224, for dialogues 1802.03753). N turns, A actions; pi: the policy, mu: what acted.

Retrace carries what came later back to a turn; truncated importance weights with bias correction make the policy's gradient;
a trust region keeps it near the slow average of itself. The gradient is that of the policy's scores (logits), turn by turn.
"""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional

from rlhf_dialog.task_oriented.policies.arguments import STRICT, ranged
from rlhf_dialog.task_oriented.policies.base import PolicyFactory
from rlhf_dialog.task_oriented.policies.network import NetworkPair, masked_logprobs, mlp
from rlhf_dialog.task_oriented.policies.replay import ReplayArguments, ReplayLearner


@dataclass(frozen=True, config=STRICT)
class ACERArguments(ReplayArguments):
    """truncation: the highest importance weight; trust: how far a gradient may lead away from the average network

    average_share: how far the average network follows in each step; batch_size: dialogues for each step
    """

    lr: float = ranged(1e-3, 1e-9, 1.0)
    truncation: float = ranged(5.0, 0.0, 1e6)
    trust: float = ranged(1.0, 0.0, 1e6)
    average_share: float = ranged(0.05, 1e-9, 1.0)
    entropy_coef: float = ranged(0.01, 0.0, 1e6)


@PolicyFactory.register("acer")
class ACER(ReplayLearner):
    """A policy and the values of all its actions; V is their mean under the policy."""

    arguments = ACERArguments
    args: ACERArguments

    def _networks(self, generator: torch.Generator) -> NetworkPair:
        sizes = [self.setting.num_features, *self.args.hidden_sizes, self.setting.num_actions]
        policy, critic = (mlp(sizes, generator, gain, nn.ReLU) for gain in (0.01, 0.1))
        return NetworkPair(policy, critic, self.args.lr, self.args.average_share)

    def _loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        turns = self.replay.whole(self.args.batch_size, generator)
        observations, masks, actions = turns["observations"], turns["masks"], turns["actions"][:, None]
        scores, values = self.learner.policy(observations), self.learner.critic(observations)
        with torch.no_grad():
            logprobs = masked_logprobs(scores, masks)
            average = masked_logprobs(self.learner.slow(observations), masks).exp()
            ratios = logprobs.exp() / turns["behaviour"].clamp_min(1e-9)
            mean = (logprobs.exp() * values).sum(dim=1)
            own_values, own_ratios = values.gather(1, actions)[:, 0], ratios.gather(1, actions)[:, 0]
            targets = retrace(turns["rewards"], own_values, mean, own_ratios, turns["ended"], self.args.gamma)
            weights = compute_weights(
                ratios, logprobs.exp(), actions, targets - mean, values - mean[:, None], self.args.truncation
            )
            entropy = -(logprobs.exp() * logprobs).sum(dim=1, keepdim=True)
            gradient = score_gradient(weights, logprobs.exp())
            gradient -= self.args.entropy_coef * logprobs.exp() * (logprobs + entropy)
            gradient = project_gradient(gradient, logprobs.exp() - average, self.args.trust)
        value_loss = functional.smooth_l1_loss(values.gather(1, actions)[:, 0], targets)
        loss = value_loss - (gradient * scores).sum(dim=1).mean()
        return loss, {"acer/value_loss": value_loss.item(), "acer/entropy": entropy.mean().item()}


def retrace(rewards: Tensor, values: Tensor, means: Tensor, ratios: Tensor, ended: Tensor, gamma: float) -> Tensor:
    """Targets (N,) of the values of the actions that were taken, of dialogues one after the other (1606.02647, lambda 1).

    values: Q of these actions now, means: V, ratios: pi/mu of these actions, ended: the last turns; (N,) each.
    """
    targets, after = [], 0.0
    rows = zip(*(column.tolist() for column in (rewards, values, means, ratios, ended)), strict=True)
    for reward, value, mean, ratio, is_last in reversed(list(rows)):
        target = reward + (0.0 if is_last else gamma * after)
        targets.append(target)
        after = min(1.0, ratio) * (target - value) + mean
    return torch.tensor(targets[::-1])


def compute_weights(
    ratios: Tensor,
    probabilities: Tensor,
    actions: Tensor,
    advantages: Tensor,
    all_advantages: Tensor,
    truncation: float,
) -> Tensor:
    """Weights (N, A) of the gradients of log pi: min(c, rho) A for the action that was taken, and for each action a the share
    that the truncation left out, pi(a) max(0, 1 - c / rho(a)) times the advantage that the critic gives it.

    ratios, probabilities, all_advantages: (N, A), the last those of the critic; actions: (N, 1), those that were taken, and
    advantages: (N,), theirs.
    """
    left_out = probabilities * (1 - truncation / ratios.clamp_min(1e-9)).clamp_min(0) * all_advantages
    first_part = ratios.gather(1, actions).clamp_max(truncation) * advantages[:, None]
    return left_out.scatter_add(1, actions, first_part)


def score_gradient(weights: Tensor, probabilities: Tensor) -> Tensor:
    """The gradient (N, A) of sum_a weights(a) log pi(a) with respect to the scores behind pi."""
    return weights - probabilities * weights.sum(dim=1, keepdim=True)


def project_gradient(gradient: Tensor, away: Tensor, trust: float) -> Tensor:
    """The vector nearest to each gradient (..., A) whose product with `away`, the gradient of a KL, is at most `trust`."""
    excess = ((gradient * away).sum(dim=-1, keepdim=True) - trust).clamp_min(0)
    return gradient - excess / away.square().sum(dim=-1, keepdim=True).clamp_min(1e-12) * away
