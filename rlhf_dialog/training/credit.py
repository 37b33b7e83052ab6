"""What each token of a rollout has earned, and what policy and critic learn from it. B episodes, T response tokens."""

import logging
from contextlib import nullcontext

import torch
from torch import Tensor

from rlhf_dialog.config.registry import AdvantageFactory
from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.training import ppo
from rlhf_dialog.training.iteration_metrics import Metrics
from rlhf_dialog.training.rollout import Collected, Rollout
from rlhf_dialog.user_code import as_user_error, is_of_users

logger = logging.getLogger(__name__)


def assign_credit(
    collected: Collected,
    config: Config,
    kl_coef: float,
    value_norm: ppo.ValueNormalizer | None,
    world: World,
    iteration: int,
) -> tuple[Rollout, Metrics]:
    """The rollout, with rewards, advantages, returns, targets and loss weights, and the statistics of `estimate_advantages`.

    The normalizer of the values learns from the returns of all ranks before it makes the targets.
    """
    mask = collected.response_mask
    earned, penalties = token_rewards(collected, config, kl_coef, world)
    values = collected.values if value_norm is None else value_norm.denormalize(collected.values)
    advantages, returns, statistics = estimate_advantages(earned, penalties, values, mask, config, world, iteration)
    weights = ppo.loss_weights(mask, config.loss_average, config.max_new_tokens, collected.logprobs, world.sum)
    targets = returns
    if value_norm is not None and config.estimator.needs_critic:
        value_norm.update(returns, mask, world.sum)
        targets = value_norm.normalize(returns)
    rollout = Rollout(
        **vars(collected),
        rewards=earned + penalties,
        advantages=advantages,
        returns=returns,
        targets=targets,
        loss_weights=weights,
    )
    return rollout, statistics


def token_rewards(collected: Collected, config: Config, kl_coef: float, world: World) -> tuple[Tensor, Tensor]:
    """The per-token rewards of scored episodes in two parts, each (B, T): what was earned, and -kl_coef * KL.

    The first is the score and the environment's rewards, or under `whiten_rewards` the whitened sum of all; the second is 0 then,
    and under `kl_in: loss`.
    """
    mask = collected.response_mask
    rewards = ppo.score_rewards(collected.scores, mask, collected.turn_rewards)
    coef_in_reward = kl_coef if config.kl_in == "reward" else 0.0
    penalties = torch.zeros_like(rewards)
    if config.reference:
        penalties = ppo.kl_penalties(
            collected.logprobs, collected.ref_logprobs, mask, coef_in_reward, config.kl_estimator
        )
    if config.whiten_rewards:
        rewards = ppo.whiten(rewards + penalties, mask, world.sum, shift_mean=False)
        penalties = torch.zeros_like(penalties)
    return rewards, penalties


def estimate_advantages(
    earned: Tensor,
    penalties: Tensor,
    values: Tensor,
    response_mask: Tensor,
    config: Config,
    world: World,
    iteration: int,
) -> tuple[Tensor, Tensor, Metrics]:
    """Advantages by the run's estimator, whitened once over the rollout of all ranks, and returns, each (B, T), with statistics.

    `values` (B, T) and the returns are in units of the rewards. The statistics are the critic's explained variance, or the number
    of groups whose rewards are all equal. If that is all groups, only KL penalties are left, and whitening, which would amplify
    them, is left out.
    """
    gae_lambda = config.gae_lambda if config.use_gae else 1.0
    by_turn = config.credit == "turn"
    credit = ppo.Credit(config.gamma, gae_lambda, config.num_responses_per_prompt, by_turn, config.group_std)
    estimator = config.estimator
    function = AdvantageFactory.find(estimator.name)
    who = f"advantage_estimator '{estimator.name}'"
    with as_user_error(who) if is_of_users(function) else nullcontext():
        advantages, returns = function(earned, penalties, values, response_mask, credit)
    for x in (advantages, returns):
        if x.shape != values.shape:
            wanted = f"two tensors {tuple(values.shape)}, advantages and returns"
            raise UserError(f"{who}: returned a tensor {tuple(x.shape)}; it must return {wanted}")
    statistics: Metrics = {}
    all_flat = False
    if estimator.needs_groups:
        flat = ppo.flat_groups(earned, response_mask, credit).item()
        num_flat, num_groups = map(int, world.sum_numbers((flat, len(values) / credit.num_responses_per_prompt)))
        statistics = {"ppo/flat_groups": num_flat}
        all_flat = num_flat == num_groups
        if all_flat:
            text = "iteration %d: the %d responses to each prompt have equal scores, for all %d prompts; there is nothing to "
            logger.warning(text + "learn from them but the KL", iteration, credit.num_responses_per_prompt, num_groups)
    if config.use_adv_normalize and not all_flat:
        advantages = ppo.whiten(advantages, response_mask, world.sum)
    if estimator.needs_critic:
        explained = ppo.explained_variance(values, returns, response_mask, world.sum)
        statistics = {"ppo/explained_variance": explained.item()}
    return advantages, returns, statistics
