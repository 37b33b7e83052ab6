"""From scores to advantages: what each token is paid, and what the run's estimator makes of it.

B episodes, T response tokens.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.world import World
from rlhf_dialog.models.masks import masked_mean
from rlhf_dialog.training import ppo
from rlhf_dialog.training.rollout import Rollout

logger = logging.getLogger(__name__)
Metrics = dict[str, float]
AdvantageFunction = Callable[[Tensor, Tensor, Tensor, Tensor, ppo.Credit], tuple[Tensor, Tensor]]
ADVANTAGES: dict[
    str, AdvantageFunction
] = {  # (rewards, penalties, values, response_mask, credit) -> advantages, returns
    "gae": ppo.gae_advantages,
    "grpo": ppo.grpo_advantages,
    "rloo": ppo.rloo_advantages,
    "reinforce_pp": ppo.reinforce_pp_advantages,
}


@dataclass(frozen=True)
class TokenRewards:
    """What each response token is paid, each (B, T); their sum is the rollout's `rewards`."""

    earned: Tensor  # the score and the rewards of turns; under `whiten_rewards` the whitened sum of all
    penalties: Tensor  # -kl_coef * KL

    @property
    def total(self) -> Tensor:
        return self.earned + self.penalties


@dataclass(frozen=True)
class Advantages:
    """Advantages and returns, each (B, T), in the units of the rewards but for the whitening of the advantages."""

    advantages: Tensor
    returns: Tensor
    # the share of the returns' variance that the critic explains, or the number of groups without spread
    statistics: Metrics


def kl_to_reference(rollout: Rollout, world: World) -> float:
    """Policy's less reference's log-probability, in nats: the mean over the response tokens of all ranks."""
    return masked_mean(rollout.logprobs - rollout.ref_logprobs, rollout.response_mask, world.sum).item()


def token_rewards(rollout: Rollout, config: Config, kl_coef: float, world: World) -> TokenRewards:
    """The rewards of a rollout whose scores are known; without penalties under `kl_in: loss`."""
    mask = rollout.response_mask
    rewards = ppo.score_rewards(rollout.scores, mask, rollout.turn_rewards)
    coef_in_reward = kl_coef if config.kl_in == "reward" else 0.0
    penalties = ppo.kl_penalties(rollout.logprobs, rollout.ref_logprobs, mask, coef_in_reward, config.kl_estimator)
    if config.whiten_rewards:
        rewards = ppo.whiten(rewards + penalties, mask, world.sum, shift_mean=False)
        penalties = torch.zeros_like(penalties)
    return TokenRewards(rewards, penalties)


def estimate_advantages(
    rewards: TokenRewards, values: Tensor, response_mask: Tensor, config: Config, world: World, iteration: int
) -> Advantages:
    """Advantages by the run's estimator, whitened once over the rollout of all ranks; `values` (B, T) in units of the rewards.

    They are not whitened when all groups are flat: only the KL penalties are left then, and whitening would blow them up.
    """
    credit = ppo.Credit(
        config.gamma,
        config.gae_lambda if config.use_gae else 1.0,
        config.num_responses_per_prompt,
        by_turn=config.credit == "turn",
    )
    estimator = ADVANTAGES[config.estimator.name]
    advantages, returns = estimator(rewards.earned, rewards.penalties, values, response_mask, credit)
    statistics: Metrics = {}
    all_flat = False
    if config.estimator.needs_groups:
        num_flat, num_groups = _flat_groups(rewards.earned, response_mask, credit, world)
        statistics, all_flat = {"ppo/flat_groups": num_flat}, num_flat == num_groups
        if all_flat:
            _warn_of_flat_groups(iteration, credit.num_responses_per_prompt, num_groups)
    if config.use_adv_normalize and not all_flat:
        advantages = ppo.whiten(advantages, response_mask, world.sum)
    if config.estimator.needs_critic:
        explained = ppo.explained_variance(values, returns, response_mask, world.sum)
        statistics = {"ppo/explained_variance": explained.item()}
    return Advantages(advantages, returns, statistics)


def _flat_groups(paid: Tensor, mask: Tensor, credit: ppo.Credit, world: World) -> tuple[int, int]:
    """The number of groups whose responses are all paid the same, and the number of all groups."""
    num_groups = len(paid) / credit.num_responses_per_prompt
    flat, groups = world.sum_numbers([ppo.flat_groups(paid, mask, credit).item(), num_groups])
    return int(flat), int(groups)


def _warn_of_flat_groups(iteration: int, size: int, num_groups: int) -> None:
    logger.warning(
        "iteration %d: the %d responses to each prompt have equal scores, for all %d prompts; there is nothing to learn "
        "from them but the KL",
        iteration,
        size,
        num_groups,
    )
