"""The metrics of one iteration's rollout, over the episodes of all ranks. B episodes, T response tokens, K rewards."""

import math

import torch
from torch import Tensor

from rlhf_dialog.distributed.world import World
from rlhf_dialog.evaluation.gain import OF_REWARDS, OF_WEIGHTS, SUMS, estimate_gain
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.models.masks import apply_mask, masked_mean, mean
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.scoring import metrics_of
from rlhf_dialog.training.rollout import Clock, Collected, Rollout
from rlhf_dialog.user_code import as_user_error

Metrics = dict[str, float]


def read(*records: dict[str, Tensor]) -> list[Metrics]:
    """The numbers of records of scalars, for which the host waits once; they are as exact as those of `item`."""
    stacked = [torch.stack([x.detach() for x in record.values()]) for record in records if record]
    numbers = iter(torch.cat(stacked).tolist() if stacked else [])
    return [{name: next(numbers) for name in record} for record in records]


def times(clock: Clock, num_generated: int) -> Metrics:
    """`time/<stage>` of an iteration, which waits for the device, and FPS: `num_generated` tokens a second."""
    stages = {f"time/{name}": seconds for name, seconds in clock.seconds.items()}
    seconds = clock.elapsed
    stages["time/update"] = seconds - clock.seconds["rollout"] - clock.seconds["reward"]
    return stages | {"FPS": num_generated / seconds}


def rollout_metrics(rollout: Collected, world: World) -> Metrics:
    """Scores, entropy, lengths, and the parts of the reward: means over all episodes or all tokens. Times are this rank's own.

    Of a filtered rollout also what the KL cannot see under top-k and top-p.
    """
    total, mask = world.sum, rollout.response_mask
    parts = rollout.reward_scores.parts
    sums = [value for part in parts.values() for value in (math.fsum(part.raw), math.fsum(part.weighted))]
    counts = [rollout.num_dropped, rollout.num_tokens, rollout.num_replies, len(rollout)]
    dropped, tokens, replies, episodes, *sums = world.sum_numbers([*counts, *sums])
    means = {
        "objective/score": mean(rollout.paid, total),
        "objective/entropy": masked_mean(rollout.entropy, mask, total),
        "response/truncated": mean(rollout.truncated.float(), total),
    }
    if rollout.kl_full is not None and rollout.ref_support_mass is not None:
        means["objective/kl_full"] = masked_mean(rollout.kl_full, mask, total)
        means["objective/ref_support_mass"] = masked_mean(rollout.ref_support_mass, mask, total)
    metrics = {"response/unscored": int(dropped), "response/length": tokens / replies} | read(means)[0]
    for (name, part), raw, weighted in zip(parts.items(), sums[::2], sums[1::2], strict=True):
        metrics[f"reward/{name}"] = raw / episodes
        metrics[f"reward/{name}_weighted"] = weighted / episodes
        metrics[f"time/reward_{name}"] = part.seconds
    return metrics


def engine_metrics(rollout: Collected, sampled_logprobs: Tensor, cap: float, world: World) -> Metrics:
    """How far the engine that sampled is from the policy, over the tokens of all ranks.

    `engine/mismatch` and `engine/mismatch_max`: of |log p_engine - log p_policy|. `engine/surprise`: the mean of -log p_policy
    less the entropy, which is 0 for draws from the policy. Of `engine_weights`: their mean, and the share that is at the `cap`.
    """
    mask = rollout.response_mask
    log_ratio = apply_mask(rollout.logprobs - sampled_logprobs, mask)
    is_capped = (log_ratio > math.log(cap)).to(log_ratio.dtype)
    columns = [log_ratio.abs(), -rollout.logprobs - rollout.entropy, rollout.engine_weights, is_capped]
    sums = torch.stack([apply_mask(x, mask).sum(dtype=torch.float64) for x in columns])
    tokens, *sums_of_all = world.sum_numbers([rollout.num_tokens, *sums.tolist()])
    largest = max(world.gather(log_ratio.abs().max().item() if rollout.num_tokens else 0.0))
    names = ("mismatch", "surprise", "weight_mean", "weight_capped")
    means = {f"engine/{name}": total / max(tokens, 1) for name, total in zip(names, sums_of_all, strict=True)}
    return means | {"engine/mismatch_max": largest}


def gain_metrics(rollout: Collected, num_responses_per_prompt: int, world: World) -> Metrics:
    """What the policy has gained over the reference, from the rollout alone, in all and by each part, with standard errors.

    `objective/gain`, `objective/gain_se`, `reward/<name>_gain` of each part, `objective/score_se`; errors are between prompts.
    And `gain_sums/`, from which `evaluation.gain` estimates the gain of several iterations.

    The gain is NaN where it cannot be estimated: without a reference, under top-k and top-p, for responses that the policy did
    not sample, and with dropped episodes. There the sums are NaN, too.
    """
    size = (
        num_responses_per_prompt if len(rollout) % num_responses_per_prompt == 0 else 1
    )  # the caller's, without groups
    parts = {name: torch.tensor(part.raw, dtype=torch.float64) for name, part in rollout.reward_scores.parts.items()}
    prefixes = ["", *(f"{name}/" for name in parts)]
    names = [*OF_WEIGHTS, *(prefix + name for prefix in prefixes for name in OF_REWARDS)]
    sums = dict.fromkeys((f"{SUMS}{name}" for name in names), math.nan)
    sampled = rollout.logprobs if rollout.sampled_logprobs is None else rollout.sampled_logprobs
    log_ratio = apply_mask(rollout.ref_logprobs - sampled, rollout.response_mask)
    columns = torch.stack([rollout.paid.double(), log_ratio.sum(dim=1, dtype=torch.float64)])
    paid, log_weights = columns.cpu()  # for which the host waits once
    rewards = torch.stack([paid, *parts.values()])
    counts = [rollout.num_dropped, len(rollout), log_weights.isnan().sum().item()]
    dropped, episodes, unread, *totals = world.sum_numbers([*counts, *rewards.sum(dim=1).tolist()])
    score_error = math.nan
    if not dropped:
        of_rank = prompt_sums(rewards, log_weights, size, torch.tensor(totals, dtype=torch.float64), int(episodes))
        of_all = world.sum_numbers(of_rank)
        _, (score_error,) = means_of_prompts(paid.view(1, len(rollout) // size, size).mean(dim=2), world)
        has_baseline = size > 1 or episodes > 1
        if rollout.is_sampled and rollout.kl_full is None and not unread and has_baseline:
            sums = dict(zip(sums, of_all, strict=True))
    (gain, error), *others = (estimate_gain([sums], prefix) for prefix in prefixes)
    gains = {f"reward/{name}_gain": of_part for name, (of_part, _) in zip(parts, others, strict=True)}
    return {
        "objective/gain": gain,
        "objective/gain_se": error,
        **gains,
        "objective/score_se": score_error,
        **sums,
    }


def prompt_sums(
    rewards: Tensor, log_weights: Tensor, group_size: int, totals: Tensor, num_episodes: int
) -> list[float]:
    """The sums over these prompts that `evaluation.gain` names, in its order, for each of the rewards (K, B).

    `log_weights` (B,): log p_reference - log p_policy of each episode; the `group_size` episodes of a prompt are neighbours.
    totals (K,): the sums of the rewards over `num_episodes` episodes, those of all ranks; needed with one episode a prompt.
    """
    groups, weights = rewards.view(len(rewards), -1, group_size), log_weights.exp().view(-1, group_size)
    if group_size > 1:
        baselines = (groups.sum(dim=2, keepdim=True) - groups) / (group_size - 1)
    else:
        baselines = (totals.view(-1, 1, 1) - groups) / max(num_episodes - 1, 1)
    excess = groups - baselines
    d, a, w = excess.sum(dim=2), (weights * excess).sum(dim=2), weights.sum(dim=1)
    products = torch.stack([d, a, d * d, a * a, d * a, d * w, a * w], dim=1).sum(dim=2)
    of_weights = [w.sum().item(), (w * w).sum().item(), -log_weights.sum().item()]
    return [len(log_weights), len(weights), *of_weights, *products.flatten().tolist()]


def means_of_prompts(numbers: Tensor, world: World) -> tuple[list[float], list[float]]:
    """The means of the rows of `numbers` (K, prompts) over the prompts of all ranks, and their standard errors."""
    count, *sums = world.sum_numbers([numbers.shape[1], *numbers.sum(dim=1).tolist()])
    means = [total / count for total in sums]
    apart = (numbers - torch.tensor(means, dtype=torch.float64)[:, None]).square().sum(dim=1)
    squares = world.sum_numbers(apart.tolist())
    return means, [math.sqrt(square / (count - 1) / count) if count > 1 else math.nan for square in squares]


def dialogue_metrics(rollout: Collected, world: World) -> Metrics:
    """Of dialogues with environments: what they paid, the replies of the policy, and the share of successes where the last info
    says `success`; means over all episodes, of success over those that say it, whose number is `success_of` where some do not."""
    known = [d.meta.get("info", {}).get("success") for d in rollout.dialogues]
    paid = 0.0 if rollout.turn_rewards is None else rollout.turn_rewards.double().sum().item()
    counts = [len(rollout), rollout.num_replies, sum(x is not None for x in known), sum(map(bool, known)), paid]
    episodes, replies, judged, successes, paid = world.sum_numbers(counts)
    found = {"environment/reward": paid / episodes, "environment/turns": replies / episodes}
    if judged:
        found["environment/success"] = successes / judged
    if 0 < judged < episodes:
        found["environment/success_of"] = judged
    return found


def vec_info_metrics(vec_info: VecInfo, rollout: Rollout, world: World) -> Metrics:
    """The numbers that the vec-info class returns; with several ranks their mean, weighted by the episodes of each rank, but for
    those of `VecInfo.pool`.

    Raises UserError with the line that failed when the class raises on any rank.
    """
    name, kind = f"vec_info_class: {type(vec_info).__name__}", type(vec_info)
    with world.fail_together(), as_user_error(name, kind):
        metrics = vec_info(rollout) if len(rollout) else {}
    metrics = _mean_over_ranks(metrics, len(rollout), world)
    pool = getattr(vec_info, "pool", None)
    if world.size == 1 or pool is None:
        return metrics
    responses = [text for texts in world.gather([d.response for d in rollout.dialogues]) for text in texts]
    with world.fail_together(), as_user_error(name, kind):
        return metrics | {k: value for k, value in pool(responses).items() if k in metrics}


def reward_metrics(reward: BaseReward, rollout: Rollout, world: World) -> Metrics:
    """`reward/<name>/<key>`: a reward's own metrics; with several ranks their mean, weighted by the episodes of each rank.

    Raises RewardError when the reward raises or returns something that is not a number, on any rank.
    """
    with world.fail_together():
        found = {f"reward/{name}": value for name, value in metrics_of(reward).items()}
    return _mean_over_ranks(found if len(rollout) else {}, len(rollout), world)


def _mean_over_ranks(metrics: Metrics, episodes: int, world: World) -> Metrics:
    if world.size == 1:
        return metrics
    pairs: dict[str, list[tuple[float, int]]] = {}
    for metrics_of_rank in world.gather({name: (float(value), episodes) for name, value in metrics.items()}):
        for name, pair in metrics_of_rank.items():
            pairs.setdefault(name, []).append(pair)
    return {name: sum(value * n for value, n in some) / sum(n for _, n in some) for name, some in pairs.items()}
