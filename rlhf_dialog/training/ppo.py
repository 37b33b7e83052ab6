"""The mathematics of PPO on responses: pure tensors in, tensors out. B episodes, T response tokens.

Every `response_mask` is True on tokens that the policy wrote and may have holes (user turns inside an episode): a hole
behaves as if its tokens were deleted. Masked values may be inf or nan, so they are replaced by `torch.where`, never multiplied.

Departures from the papers: advantages are whitened once over the whole rollout, and by default every estimator carries the KL
penalty in the token rewards (GRPO puts a k3 estimate into the loss; `kl_in: loss` puts the exact KL there). GRPO and RLOO
compare the total rewards of a group's responses; each token adds its own penalty-to-go, not that of the whole response, and
is compared with the tokens of the same number in the other responses.

Where a formula takes `total`, the episodes may be divided among several processes: `total` sums a tensor over all processes,
and the result is that of all episodes together.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.models.masks import Total, apply_mask, last_token, masked_mean, no_reduce


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor, total: Total = no_reduce) -> Tensor:
    """The share of the variance of the returns that the values explain, a scalar: 1 is all; a constant explains 0."""
    errors, wanted = (_variance(x, mask, total) for x in (returns - values, returns))
    return 1 - errors / wanted


def _variance(x: Tensor, mask: Tensor, total: Total) -> Tensor:
    """Population variance of the True positions."""
    return masked_mean((x - masked_mean(x, mask, total)) ** 2, mask, total)


def score_rewards(scores: Tensor, response_mask: Tensor, turn_rewards: Tensor | None = None) -> Tensor:
    """Per-token rewards (B, T) before the KL penalty: the score (B,) on the last response token, plus `turn_rewards` (B, T)."""
    positions = torch.arange(response_mask.shape[1], device=response_mask.device)
    is_last = positions == last_token(response_mask).unsqueeze(1)
    paid = torch.where(is_last, scores.unsqueeze(1), 0.0)
    return paid if turn_rewards is None else paid + turn_rewards


def kl_penalties(
    logprobs: Tensor, ref_logprobs: Tensor, response_mask: Tensor, kl_coef: float, kl_estimator: str = "k1"
) -> Tensor:
    """Per-token KL penalties (B, T): -kl_coef * an estimate of the policy's KL divergence from the reference.

    With r = reference's / policy's probability of the sampled token: `k1` is -log r (Ziegler et al. 2019, arXiv 1909.08593), `k3`
    is r - 1 - log r (Schulman 2020, joschu.net/blog/kl-approx.html), which has the same mean and is never negative.
    """
    estimate = logprobs - ref_logprobs
    if kl_estimator == "k3":
        estimate = torch.expm1(-estimate) + estimate
    return apply_mask(-kl_coef * estimate, response_mask)


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
    return advantages, apply_mask(advantages + values, response_mask)


def turn_gae(
    rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """`gae` with whole turns as steps: advantages and returns, each (B, T), the same on all tokens of a turn.

    A turn is a run of True positions. Its reward is the sum of its tokens' and of those in the hole behind it, its value that
    before its first token; gamma counts turns.
    """
    begins = _begins(response_mask)
    number = begins.cumsum(dim=1) - 1  # -1 before the first turn
    turns = torch.arange(response_mask.shape[1], device=values.device)
    place = torch.where(number < 0, turns[-1], number)  # rewards before the first turn are left out
    paid = torch.where((number >= 0) & (response_mask | rewards.isfinite()), rewards, torch.zeros_like(rewards))
    of_turns = torch.zeros_like(values).scatter_add(1, place, paid)
    values_of_turns = torch.zeros_like(values).scatter_add(1, place, apply_mask(values, begins))
    is_turn = turns <= number[:, -1:]
    found = gae(of_turns, values_of_turns, is_turn, gamma, gae_lambda)
    advantages, returns = (apply_mask(x.gather(1, place), response_mask) for x in found)
    return advantages, returns


def _begins(response_mask: Tensor) -> Tensor:
    """(B, T): True on the first token of each reply, an unbroken run of True positions."""
    before = torch.cat([torch.zeros_like(response_mask[:, :1]), response_mask[:, :-1]], dim=1)
    return response_mask & ~before


def discounted_returns(rewards: Tensor, response_mask: Tensor, gamma: float) -> Tensor:
    """Returns (B, T): the discounted sum of the rewards from each True position on; 0 on False positions."""
    return gae(rewards, torch.zeros_like(rewards), response_mask, gamma, gae_lambda=1.0)[0]


@dataclass(frozen=True)
class Credit:
    """The settings of an advantage estimator: discount, lambda, group size, and whether a step is a token or a turn."""

    gamma: float
    gae_lambda: float = 1.0
    num_responses_per_prompt: int = 1  # the responses to one prompt are neighbours in the batch
    by_turn: bool = False  # a step is a whole turn, not a token
    group_std: bool = True  # of GRPO: distances are divided by the group's deviation


def gae_advantages(
    rewards: Tensor, penalties: Tensor, values: Tensor, response_mask: Tensor, credit: Credit
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, each (B, T), with a critic: `gae` of all rewards, or `turn_gae`."""
    return (turn_gae if credit.by_turn else gae)(
        rewards + penalties, values, response_mask, credit.gamma, credit.gae_lambda
    )


def reinforce_pp_advantages(
    rewards: Tensor, penalties: Tensor, values: Tensor, response_mask: Tensor, credit: Credit
) -> tuple[Tensor, Tensor]:
    """REINFORCE++ (Hu et al. 2025, arXiv 2501.03262): the discounted returns, each (B, T), are the advantages."""
    returns = discounted_returns(rewards + penalties, response_mask, credit.gamma)
    return returns, returns


def grpo_advantages(
    rewards: Tensor, penalties: Tensor, values: Tensor, response_mask: Tensor, credit: Credit
) -> tuple[Tensor, Tensor]:
    """GRPO (Shao et al. 2024, arXiv 2402.03300): total reward minus the group's mean, divided by the group's deviation.

    A group is the responses to one prompt. All tokens of an episode share its advantage: gamma has no effect. Each token's
    penalty-to-go minus the group's mean is added, undivided, so that a group with equal rewards has the advantages of its KL
    penalties alone. Without `group_std` the rewards are not divided either (Dr. GRPO, Liu et al. 2025, arXiv 2503.20783).
    Returns advantages and discounted returns, each (B, T).
    """
    distance, deviation = _distances(_totals(rewards, response_mask, credit))
    distance = distance / (deviation + 1e-4) if credit.group_std else distance
    penalty, _ = _distances(_to_go(penalties, response_mask, credit))
    return _in_tokens(distance, penalty, rewards + penalties, response_mask, credit)


def rloo_advantages(
    rewards: Tensor, penalties: Tensor, values: Tensor, response_mask: Tensor, credit: Credit
) -> tuple[Tensor, Tensor]:
    """RLOO (Ahmadian et al. 2024, arXiv 2402.14740): total reward minus the mean of the other responses in the group.

    Each token's penalty-to-go is treated alike. Groups and result as in `grpo_advantages`.
    """
    n = credit.num_responses_per_prompt
    of_episodes, of_tokens = (
        _distances(x)[0] * (n / (n - 1))
        for x in (_totals(rewards, response_mask, credit), _to_go(penalties, response_mask, credit))
    )
    return _in_tokens(of_episodes, of_tokens, rewards + penalties, response_mask, credit)


def flat_groups(rewards: Tensor, response_mask: Tensor, credit: Credit) -> Tensor:
    """The number of groups, a scalar, whose episodes all have the same total reward, so that they give no learning signal."""
    totals = _totals(rewards, response_mask, credit)
    totals = totals.to(rewards.dtype)  # what differs by rounding alone is the same
    return (totals == totals[:, :1]).all(dim=1).sum()


def _totals(rewards: Tensor, response_mask: Tensor, credit: Credit) -> Tensor:
    """The total reward of each episode (B / n, n, 1), in float64."""
    return (
        apply_mask(rewards, response_mask).sum(dim=1, dtype=torch.float64).view(-1, credit.num_responses_per_prompt, 1)
    )


def _to_go(penalties: Tensor, response_mask: Tensor, credit: Credit) -> Tensor:
    """The sum of the penalties from each token on (B / n, n, T), in float64: the holes are behind the last token, all 0."""
    to_go = apply_mask(penalties, response_mask).flip(1).cumsum(dim=1, dtype=torch.float64).flip(1)
    first_tokens = (~response_mask).long().argsort(dim=1, stable=True)
    to_go = apply_mask(to_go, response_mask).gather(1, first_tokens)
    return to_go.view(-1, credit.num_responses_per_prompt, to_go.shape[1])


def _distances(x: Tensor) -> tuple[Tensor, Tensor]:
    """Distance of x (groups, n, .) from the mean of its group, and the group's standard deviation (groups, 1, .)."""
    return x - x.mean(dim=1, keepdim=True), x.std(dim=1, keepdim=True)


def _in_tokens(
    of_episodes: Tensor, of_tokens: Tensor, rewards: Tensor, response_mask: Tensor, credit: Credit
) -> tuple[Tensor, Tensor]:
    """The advantage of each episode on all of its tokens, plus that of each token (B, T), and the discounted returns (B, T).

    `of_tokens` is in the order of `_to_go`.
    """
    place = (response_mask.cumsum(dim=1) - 1).clamp(min=0)  # of each token among those of its episode
    advantages = (of_episodes + of_tokens).view_as(rewards).gather(1, place)
    advantages = apply_mask(advantages.to(rewards.dtype), response_mask)
    return advantages, discounted_returns(rewards, response_mask, credit.gamma)


def whiten(x: Tensor, mask: Tensor, total: Total = no_reduce, shift_mean: bool = True) -> Tensor:
    """Shift and scale the True positions to mean 0 and variance 1 (population variance); 0 on False positions.

    Without `shift_mean` their mean stays what it was.
    """
    mean = masked_mean(x, mask, total)
    whitened = (x - mean) * torch.rsqrt(_variance(x, mask, total) + 1e-8)
    return apply_mask(whitened if shift_mean else whitened + mean, mask)


def loss_weights(
    response_mask: Tensor, average: str, max_new_tokens: int, like: Tensor, total: Total = no_reduce
) -> Tensor:
    """The weights (B, T) of the tokens in a policy loss that is a sum over tokens divided by a number of tokens.

    average: `rollout`, 1 for each; `response`, the mean number of tokens of a response divided by that of its own, so that all
    responses weigh the same; `length`, that mean divided by `max_new_tokens` (Dr. GRPO). `like` has the result's type.
    """
    if average == "rollout":
        return torch.ones_like(like)
    lengths = response_mask.sum(dim=1, keepdim=True).double()
    tokens, responses = total(torch.stack([lengths.sum(), lengths.new_tensor(len(lengths))]))
    own = lengths.clamp(min=1) if average == "response" else torch.full_like(lengths, max_new_tokens)
    return (tokens / responses.clamp(min=1) / own).to(like.dtype).expand_as(like)


@dataclass(frozen=True)
class Clip:
    """How far the ratio of new and old probabilities counts: from 1 - low to 1 + high."""

    low: float
    high: float
    dual: float | None = None  # bound of the loss of a negative advantage A, as a multiple of -A
    by_sequence: bool = False  # the ratio is that of a whole reply


@dataclass(frozen=True)
class LossInputs:
    """What a policy loss gets of a microbatch of S rows, which may be parts of minibatch, prompt group and dialogue.

    Tensors are (S, W), as the rollout's. Only `logprobs` has a gradient. Outside of `mask` anything may stand. The loss is the
    sum over the tokens, each times its weight, divided by `num_tokens`, so that microbatches and ranks add up.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor  # NaN without a reference
    advantages: Tensor
    weights: Tensor  # those of `loss_average`, times those of an engine
    mask: Tensor
    num_tokens: Tensor | int  # of the minibatch
    clip: Clip


def clip_loss(x: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate loss (Schulman et al. 2017, arXiv 1707.06347) and the fraction of clipped tokens, two scalars.

    `clip.dual` c bounds the loss of a negative advantage A by -c * A (Ye et al. 2020, arXiv 1912.09729). Under
    `clip.by_sequence` the ratio is that of GSPO-token (Zheng et al. 2025, arXiv 2507.18071, eq. 14): the geometric mean of the
    reply's ratios, with the gradient of the token's own.
    """
    log_ratio = apply_mask(x.logprobs - x.old_logprobs, x.mask)
    ratio = torch.exp(log_ratio)
    if x.clip.by_sequence:
        own = log_ratio - log_ratio.detach()
        ratio = torch.exp(_means_of_replies(log_ratio.detach(), x.mask) + own)
    advantages = apply_mask(x.advantages, x.mask)
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - x.clip.low, 1 + x.clip.high)
    loss = torch.maximum(plain, clipped)
    if x.clip.dual is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -x.clip.dual * advantages), loss)
    return weighted_sum(loss, x), {"clip_fraction": fraction(clipped > plain, x)}


def cispo_loss(x: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """CISPO (MiniMax 2025, arXiv 2506.13585) and the fraction of clipped tokens, two scalars: -A log p for each token, times its
    ratio, which is at most 1 + `clip.high`, has no lower bound, and no gradient."""
    ratio = torch.exp(apply_mask(x.logprobs.detach() - x.old_logprobs, x.mask))
    limit = 1 + x.clip.high
    loss = -ratio.clamp(max=limit) * apply_mask(x.advantages, x.mask) * apply_mask(x.logprobs, x.mask)
    return weighted_sum(loss, x), {"clip_fraction": fraction(ratio > limit, x)}


def weighted_sum(per_token: Tensor, x: LossInputs) -> Tensor:
    """The sum over the tokens of `per_token` (S, W), each times its weight, divided by `num_tokens`."""
    return apply_mask(per_token * x.weights, x.mask).sum() / x.num_tokens


def fraction(is_so: Tensor, x: LossInputs) -> Tensor:
    """The share of the tokens at which `is_so` (S, W), divided by `num_tokens`."""
    return apply_mask(is_so.to(x.advantages.dtype), x.mask).sum() / x.num_tokens


def _means_of_replies(x: Tensor, response_mask: Tensor) -> Tensor:
    """On each token (B, T) the mean of `x` over its reply; 0 on False positions, where `x` is 0, too."""
    number = _begins(response_mask).cumsum(dim=1)  # 0 before the first reply
    room = x.new_zeros(x.shape[0], x.shape[1] + 1)
    sums, counts = (room.scatter_add(1, number, y) for y in (x, response_mask.to(x.dtype)))
    return apply_mask((sums / counts.clamp(min=1)).gather(1, number), response_mask)


def engine_weights(logprobs: Tensor, sampled_logprobs: Tensor, response_mask: Tensor, cap: float) -> Tensor:
    """Truncated importance weights (B, T) of tokens that another program sampled: min(p_policy / p_sampled, cap), 1 in holes.

    They multiply the policy loss of each token (Yao et al. 2025, fengyao.notion.site/off-policy-rl).
    """
    return apply_mask(logprobs - sampled_logprobs, response_mask).exp().clamp(max=cap)


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
    values, old_values, returns = (apply_mask(x, response_mask) for x in (values, old_values, returns))
    loss = _error(values - returns, huber_delta)
    if clip_param is not None:
        clipped = old_values + (values - old_values).clamp(-clip_param, clip_param)
        loss = torch.maximum(loss, _error(clipped - returns, huber_delta))
    return apply_mask(loss, response_mask).sum() / count


def _error(difference: Tensor, huber_delta: float | None) -> Tensor:
    squared = 0.5 * difference**2
    if huber_delta is None:
        return squared
    size = difference.abs()
    return torch.where(size <= huber_delta, squared, huber_delta * (size - 0.5 * huber_delta))


class AdaptiveKLController:
    """Adapts the KL coefficient to keep the KL per token near a target (Ziegler et al. 2019, section 2.2).

    With `hold` the coefficient does not fall before the KL, which starts at 0, has reached the target once. It does not grow
    beyond `kl_coef_max`; None: no bound.
    """

    BELOW = 4  # updates in a row at or below the target, after which a KL that was above it counts as brought down

    def __init__(
        self,
        kl_coef: float = 0.2,
        kl_target: float = 0.05,
        kl_rate: float = 0.1,
        kl_clip: float = 0.2,
        hold: bool = True,
        kl_coef_max: float | None = None,
    ):
        self.kl_coef, self.kl_target, self.kl_rate, self.kl_clip = kl_coef, kl_target, kl_rate, kl_clip
        self.hold, self.kl_coef_max = hold, math.inf if kl_coef_max is None else kl_coef_max
        self.reached = False  # whether the KL was at its target once
        self.num_above = 0  # updates with the KL above its target, and
        self.num_below = 0  # since then, in a row, not above it
        self.kl_coef_below = kl_coef  # the coefficient before them

    def update(self, kl: float) -> float:
        """Move the coefficient once, by at most kl_rate * kl_clip of itself, and return it; `kl` is in nats per token."""
        self.reached = self.reached or kl >= self.kl_target
        self._count(kl)
        if self.reached or not self.hold:
            error = max(-self.kl_clip, min(self.kl_clip, (kl - self.kl_target) / self.kl_target))
            self.kl_coef = min(self.kl_coef * (1 + self.kl_rate * error), max(self.kl_coef, self.kl_coef_max))
        return self.kl_coef

    def _count(self, kl: float) -> None:
        self.num_below = 0 if kl > self.kl_target else self.num_below + 1
        if self.num_below == 0:
            self.num_above += 1
        elif self.num_above == 0 or self.num_below >= self.BELOW:
            self.num_above, self.kl_coef_below = 0, self.kl_coef

    @property
    def growth(self) -> float:
        """The factor by which the coefficient grew since the KL was last brought down to its target."""
        return self.kl_coef / self.kl_coef_below if self.kl_coef_below else 1.0

    @property
    def at_its_bound(self) -> bool:
        """Whether the coefficient cannot grow any more."""
        return self.kl_coef >= self.kl_coef_max

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("kl_coef", "reached", "num_above", "num_below", "kl_coef_below")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a stored state; an early one holds the coefficient alone."""
        self.kl_coef = self.kl_coef_below = state["kl_coef"]
        self.reached = state.get("reached", False)
        self.num_above, self.num_below = state.get("num_above", 0), state.get("num_below", 0)
        self.kl_coef_below = state.get("kl_coef_below", self.kl_coef)


class ValueNormalizer:
    """Running mean and deviation of the returns; the critic predicts normalised values.

    Exponential means with bias correction and a floor on the variance, as in MAPPO (Yu et al. 2021, arXiv 2103.01955); one
    update a rollout, in double precision, because the variance is a small difference of large squares.
    """

    def __init__(self, beta: float = 0.99999, min_variance: float = 1e-2):
        self.beta, self.min_variance = beta, min_variance
        self.mean_sum, self.square_sum, self.weight = 0.0, 0.0, 0.0

    def update(self, returns: Tensor, mask: Tensor, total: Total = no_reduce) -> None:
        """Take in the returns (B, T) of one rollout."""
        step, returns = 1 - self.beta, returns.double()
        mean, square = torch.stack([masked_mean(x, mask, total) for x in (returns, returns**2)]).tolist()
        self.mean_sum = self.beta * self.mean_sum + step * mean
        self.square_sum = self.beta * self.square_sum + step * square
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
