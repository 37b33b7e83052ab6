"""The mathematics of PPO on responses: pure tensors in, tensors out. B episodes, T response tokens.

Every `response_mask` is True on tokens that the policy wrote and may have holes (user turns inside an episode): a hole
behaves as if its tokens were deleted. Masked values may be inf or nan, so they are replaced by `torch.where`, never multiplied.

Departures from the papers: advantages are whitened once over the whole rollout, and every estimator carries the KL penalty
in the token rewards (GRPO puts a k3 estimate into the loss instead).

Where a formula takes `total`, the episodes may be divided among several processes: `total` sums a tensor over all processes,
and the result is that of all episodes together.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_dialog.models.masks import Total, alone, last_token, masked, masked_mean


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor, total: Total = alone) -> Tensor:
    """The share of the variance of the returns that the values explain, a scalar: 1 is all; a constant explains 0."""
    errors, wanted = (_variance(x, mask, total) for x in (returns - values, returns))
    return 1 - errors / wanted


def _variance(x: Tensor, mask: Tensor, total: Total) -> Tensor:
    """Population variance of the True positions."""
    return masked_mean((x - masked_mean(x, mask, total)) ** 2, mask, total)


def token_rewards(
    scores: Tensor,
    logprobs: Tensor,
    ref_logprobs: Tensor,
    response_mask: Tensor,
    kl_coef: float,
    turn_rewards: Tensor | None = None,
) -> Tensor:
    """Rewards (B, T): -kl_coef * (logprob - ref_logprob) on every response token, plus the score (B,) on the last one.

    `turn_rewards` (B, T), the rewards of an environment on the last token of each turn, are added.
    The log ratio of the sampled token is the k1 estimate of the KL divergence (Ziegler et al. 2019, arXiv 1909.08593).
    """
    rewards = masked(-kl_coef * (logprobs - ref_logprobs), response_mask)
    positions = torch.arange(response_mask.shape[1], device=response_mask.device)
    is_last = positions == last_token(response_mask).unsqueeze(1)
    rewards = rewards + torch.where(is_last, scores.unsqueeze(1), torch.zeros_like(rewards))
    return rewards if turn_rewards is None else rewards + turn_rewards


def gae(
    rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2015, arXiv 1506.02438): advantages and returns, each (B, T).

    An episode ends after its last True position (value 0 beyond it). A reward on a False position belongs to the last True
    position before it, and gamma counts True positions only. Both results are 0 on False positions.
    """
    zeros = torch.zeros_like(values[:, 0])
    next_value, next_advantage, reward = zeros, zeros, zeros
    columns = []
    for t in reversed(range(values.shape[1])):
        counts, value = response_mask[:, t], values[:, t]
        reward = reward + torch.where(counts | rewards[:, t].isfinite(), rewards[:, t], zeros)
        advantage = reward + gamma * next_value - value + gamma * gae_lambda * next_advantage
        columns.append(torch.where(counts, advantage, zeros))
        next_advantage = torch.where(counts, advantage, next_advantage)
        next_value = torch.where(counts, value, next_value)
        reward = torch.where(counts, zeros, reward)
    advantages = torch.stack(columns[::-1], dim=1)
    return advantages, masked(advantages + values, response_mask)


def discounted_returns(rewards: Tensor, response_mask: Tensor, gamma: float) -> Tensor:
    """Returns (B, T): the discounted sum of the rewards from each True position on; 0 on False positions."""
    return gae(rewards, torch.zeros_like(rewards), response_mask, gamma, gae_lambda=1.0)[0]


@dataclass(frozen=True)
class Credit:
    """The settings of an estimator: its horizon, and the size of the groups that it compares."""

    gamma: float
    gae_lambda: float = 1.0
    num_responses_per_prompt: int = 1  # the responses to one prompt are neighbours in the batch


def gae_advantages(rewards: Tensor, values: Tensor, response_mask: Tensor, credit: Credit) -> tuple[Tensor, Tensor]:
    """Advantages and returns, each (B, T), with a critic: `gae`."""
    return gae(rewards, values, response_mask, credit.gamma, credit.gae_lambda)


def reinforce_pp_advantages(
    rewards: Tensor, values: Tensor, response_mask: Tensor, credit: Credit
) -> tuple[Tensor, Tensor]:
    """REINFORCE++ (Hu et al. 2025, arXiv 2501.03262): the discounted returns, each (B, T), are the advantages."""
    returns = discounted_returns(rewards, response_mask, credit.gamma)
    return returns, returns


def grpo_advantages(rewards: Tensor, values: Tensor, response_mask: Tensor, credit: Credit) -> tuple[Tensor, Tensor]:
    """GRPO (Shao et al. 2024, arXiv 2402.03300): distance from the group's mean, divided by the group's deviation.

    A group is the responses to one prompt; an episode's return is the sum of its token rewards, and every token of an episode has
    the same advantage. Advantages and discounted returns, each (B, T).
    """
    distance, deviation = _in_groups(rewards, response_mask, credit.num_responses_per_prompt)
    return _spread(distance * (1 / (deviation + 1e-4)), rewards, response_mask, credit)


def rloo_advantages(rewards: Tensor, values: Tensor, response_mask: Tensor, credit: Credit) -> tuple[Tensor, Tensor]:
    """RLOO (Ahmadian et al. 2024, arXiv 2402.14740): an episode's return minus the mean of the others of its group.

    Groups, returns and result as in `grpo_advantages`.
    """
    n = credit.num_responses_per_prompt
    distance, _ = _in_groups(rewards, response_mask, n)
    return _spread(distance * (n / (n - 1)), rewards, response_mask, credit)


def _in_groups(rewards: Tensor, response_mask: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Each episode's sum of rewards minus the mean of its group (B / n, n), and the group's standard deviation (B / n, 1)."""
    totals = masked(rewards, response_mask).sum(dim=1).view(-1, n)
    return totals - totals.mean(dim=1, keepdim=True), totals.std(dim=1, keepdim=True)


def _spread(of_episodes: Tensor, rewards: Tensor, response_mask: Tensor, credit: Credit) -> tuple[Tensor, Tensor]:
    """The advantage of each episode, repeated on all of its tokens (B, T), and the discounted returns (B, T)."""
    advantages = masked(of_episodes.view(-1, 1).expand_as(rewards), response_mask)
    return advantages, discounted_returns(rewards, response_mask, credit.gamma)


def whiten(x: Tensor, mask: Tensor, total: Total = alone) -> Tensor:
    """Shift and scale the True positions to mean 0 and variance 1 (population variance); 0 on False positions."""
    return masked((x - masked_mean(x, mask, total)) * torch.rsqrt(_variance(x, mask, total) + 1e-8), mask)


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    clip_param: float,
    dual_clip_coeff: float | None = None,
    num_tokens: int | Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate loss (Schulman et al. 2017, arXiv 1707.06347) and the fraction of clipped tokens, two scalars.

    Both are sums over the True positions divided by `num_tokens` (default: their number), so that the microbatches of a
    minibatch add up. `dual_clip_coeff` c bounds the loss of a negative advantage A by -c * A (Ye et al. 2020, arXiv 1912.09729).
    """
    count = response_mask.sum() if num_tokens is None else num_tokens
    ratio = torch.exp(masked(logprobs - old_logprobs, response_mask))
    advantages = masked(advantages, response_mask)
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_param, 1 + clip_param)
    loss = torch.maximum(plain, clipped)
    if dual_clip_coeff is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip_coeff * advantages), loss)
    return loss.sum() / count, masked((clipped > plain).to(loss.dtype), response_mask).sum() / count


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    response_mask: Tensor,
    clip_param: float | None = None,
    huber_delta: float | None = None,
    num_tokens: int | Tensor | None = None,
) -> Tensor:
    """Half the squared error (or Huber loss) of the values, a scalar; with `clip_param` the worse of clipped and unclipped.

    The sum over the True positions divided by `num_tokens` (default: their number).
    """
    count = response_mask.sum() if num_tokens is None else num_tokens
    values, old_values, returns = (masked(x, response_mask) for x in (values, old_values, returns))
    loss = _error(values - returns, huber_delta)
    if clip_param is not None:
        clipped = old_values + (values - old_values).clamp(-clip_param, clip_param)
        loss = torch.maximum(loss, _error(clipped - returns, huber_delta))
    return masked(loss, response_mask).sum() / count


def _error(difference: Tensor, huber_delta: float | None) -> Tensor:
    squared = 0.5 * difference**2
    if huber_delta is None:
        return squared
    size = difference.abs()
    return torch.where(size <= huber_delta, squared, huber_delta * (size - 0.5 * huber_delta))


class AdaptiveKLController:
    """Adapts the KL coefficient to keep the KL per token near a target (Ziegler et al. 2019, section 2.2)."""

    def __init__(self, kl_coef: float = 0.2, kl_target: float = 0.05, kl_rate: float = 0.1, kl_clip: float = 0.2):
        self.kl_coef, self.kl_target, self.kl_rate, self.kl_clip = kl_coef, kl_target, kl_rate, kl_clip

    def update(self, kl: float) -> float:
        """Move the coefficient once, by at most kl_rate * kl_clip of itself, and return it; `kl` is in nats per token."""
        error = max(-self.kl_clip, min(self.kl_clip, (kl - self.kl_target) / self.kl_target))
        self.kl_coef *= 1 + self.kl_rate * error
        return self.kl_coef

    def state_dict(self) -> dict[str, float]:
        return {"kl_coef": self.kl_coef}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.kl_coef = state["kl_coef"]


class ValueNormalizer:
    """Running mean and deviation of the returns; the critic predicts normalised values.

    Exponential means with bias correction and a floor on the variance, as in MAPPO (Yu et al. 2021, arXiv 2103.01955); one
    update a rollout.
    """

    def __init__(self, beta: float = 0.99999, min_variance: float = 1e-2):
        self.beta, self.min_variance = beta, min_variance
        self.mean_sum, self.square_sum, self.weight = 0.0, 0.0, 0.0

    def update(self, returns: Tensor, mask: Tensor, total: Total = alone) -> None:
        """Take in the returns (B, T) of one rollout."""
        step = 1 - self.beta
        self.mean_sum = self.beta * self.mean_sum + step * masked_mean(returns, mask, total).item()
        self.square_sum = self.beta * self.square_sum + step * masked_mean(returns**2, mask, total).item()
        self.weight = self.beta * self.weight + step

    @property
    def mean(self) -> float:
        return self.mean_sum / self.weight if self.weight else 0.0

    @property
    def deviation(self) -> float:
        if not self.weight:
            return 1.0
        return math.sqrt(max(self.square_sum / self.weight - self.mean**2, self.min_variance))

    def normalize(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation

    def denormalize(self, x: Tensor) -> Tensor:
        return x * self.deviation + self.mean

    def state_dict(self) -> dict[str, float]:
        return {"mean_sum": self.mean_sum, "square_sum": self.square_sum, "weight": self.weight}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.mean_sum, self.square_sum, self.weight = state["mean_sum"], state["square_sum"], state["weight"]
