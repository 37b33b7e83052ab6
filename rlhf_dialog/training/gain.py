"""What the policy has gained over the reference on the prompts of a rollout, from the rollout alone. B episodes, K rewards.

Of each episode, r is its reward, w = p_reference / p_policy the ratio of the probabilities of all its response tokens, and b the
mean reward of the other episodes of its prompt (of all other episodes where each prompt has one). Then

    mean((r - b) (1 - w))

is an unbiased estimate of E_policy[r] - E_reference[r], because E[w] = 1 and b does not depend on the episode: importance
sampling with a baseline (Owen 2013, Monte Carlo theory, methods and examples, chapter 9). Both expectations are over the same
prompts, so that the differences between prompts cancel.
"""

import math

import torch
from torch import Tensor

from rlhf_dialog.distributed.world import World
from rlhf_dialog.models.masks import apply_mask
from rlhf_dialog.training.rollout import Rollout

LEAST_EFFECTIVE = 0.25  # of the episodes: (sum w)^2 / sum w^2
MEAN_WEIGHT = (0.5, 1.5)  # expected is 1
LARGEST_KL = 1.0  # nats per episode
Metrics = dict[str, float]


def gain_metrics(rollout: Rollout, num_responses_per_prompt: int, world: World) -> Metrics:
    """`objective/gain` with its standard error `objective/gain_se`, `reward/<name>_gain` of each part, `objective/score_se`.

    Standard errors are between prompts, over all ranks. The gain is NaN where it cannot be estimated: without a reference, under
    top-k and top-p, for responses that the policy did not sample, with dropped episodes, and where the policy is too far from the
    reference: an effective number of episodes below a quarter, a mean weight outside of 0.5 to 1.5, or a KL above 1 nat per
    episode. (A policy that does what the reference does once in a thousand has weights near 0 everywhere, and an estimate of
    nothing.)
    """
    parts = {name: torch.tensor(part.raw, dtype=torch.float64) for name, part in rollout.reward_scores.parts.items()}
    names = ["objective/gain", *(f"reward/{name}_gain" for name in parts)]
    unknown = dict.fromkeys([*names, "objective/gain_se"], math.nan)
    log_ratio = apply_mask(rollout.ref_logprobs - rollout.logprobs, rollout.response_mask)
    columns = torch.stack([rollout.paid.double(), log_ratio.sum(dim=1, dtype=torch.float64)])
    paid, log_weights = columns.cpu()  # for which the host waits once
    rewards, weights = torch.stack([paid, *parts.values()]), log_weights.exp()
    sums = [
        weights.sum().item(),
        weights.square().sum().item(),
        -log_weights.sum().item(),
        *rewards.sum(dim=1).tolist(),
    ]
    dropped, episodes, *sums = world.sum_numbers([rollout.num_dropped, len(rollout), *sums])
    if dropped:
        return unknown | {"objective/score_se": math.nan}
    gains = episode_gains(
        rewards, weights, num_responses_per_prompt, torch.tensor(sums[3:], dtype=torch.float64), int(episodes)
    )
    num_prompts = len(rollout) // num_responses_per_prompt  # of this rank, perhaps 0
    by_prompt = torch.cat([gains, rewards[:1]]).view(len(gains) + 1, num_prompts, num_responses_per_prompt).mean(dim=2)
    means, errors = means_of_prompts(by_prompt, world)
    found = dict(zip(names, means, strict=False)) | {"objective/gain_se": errors[0]}
    is_known = rollout.is_sampled and rollout.kl_full is None and is_near(sums[:3], episodes)
    return (found if is_known else unknown) | {"objective/score_se": errors[-1]}


def is_near(sums: list[float], episodes: float) -> bool:
    """Whether the policy is near enough to its reference; `sums`: of the weights, of their squares, of the KL in nats."""
    weights, squares, kl = sums
    least, most = MEAN_WEIGHT
    return (
        weights**2 >= LEAST_EFFECTIVE * episodes * squares
        and least * episodes <= weights <= most * episodes
        and kl <= LARGEST_KL * episodes
    )


def episode_gains(rewards: Tensor, weights: Tensor, group_size: int, totals: Tensor, num_episodes: int) -> Tensor:
    """(r - b) (1 - w) of each reward and episode (K, B); the `group_size` episodes of a prompt are neighbours.

    totals (K,): the sums of the rewards over `num_episodes` episodes, those of all ranks; needed with one episode a prompt.
    """
    if group_size > 1:
        groups = rewards.view(len(rewards), rewards.shape[1] // group_size, group_size)
        others = (groups.sum(dim=2, keepdim=True) - groups) / (group_size - 1)
        baselines = others.view_as(rewards)
    else:
        baselines = (totals[:, None] - rewards) / (num_episodes - 1) if num_episodes > 1 else rewards * math.nan
    return (rewards - baselines) * (1 - weights)


def means_of_prompts(numbers: Tensor, world: World) -> tuple[list[float], list[float]]:
    """The means of the rows of `numbers` (K, prompts) over the prompts of all ranks, and their standard errors."""
    count, *sums = world.sum_numbers([numbers.shape[1], *numbers.sum(dim=1).tolist()])
    means = [total / count for total in sums]
    apart = (numbers - torch.tensor(means, dtype=torch.float64)[:, None]).square().sum(dim=1)
    squares = world.sum_numbers(apart.tolist())
    return means, [math.sqrt(square / (count - 1) / count) if count > 1 else math.nan for square in squares]
