"""From scores to per-token rewards, and from these to advantages and returns. B episodes, T response tokens."""

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
# (rewards, penalties, values, response_mask, credit) -> advantages, returns
ADVANTAGES: dict[str, AdvantageFunction] = {
    "gae": ppo.gae_advantages,
    "grpo": ppo.grpo_advantages,
    "rloo": ppo.rloo_advantages,
    "reinforce_pp": ppo.reinforce_pp_advantages,
}


@dataclass(frozen=True)
class TokenRewards:
    """The reward of each response token in two parts, each (B, T); their sum is the rollout's `rewards`."""

    earned: Tensor  # the score and the environment's rewards; under `whiten_rewards` the whitened sum of all
    penalties: Tensor  # -kl_coef * KL

    @property
    def total(self) -> Tensor:
        return self.earned + self.penalties


@dataclass(frozen=True)
class Advantages:
    """Advantages, possibly whitened, and returns in the units of the rewards, each (B, T)."""

    advantages: Tensor
    returns: Tensor
    statistics: Metrics  # the critic's explained variance, or the number of groups whose rewards are all equal


def kl_to_reference(rollout: Rollout, world: World) -> float:
    """KL from the reference in nats per token: the mean log ratio over the response tokens of all ranks; NaN without one."""
    return masked_mean(rollout.logprobs - rollout.ref_logprobs, rollout.response_mask, world.sum).item()


def token_rewards(rollout: Rollout, config: Config, kl_coef: float, world: World) -> TokenRewards:
    """The per-token rewards of a scored rollout; without KL penalties under `kl_in: loss`."""
    mask = rollout.response_mask
    rewards = ppo.score_rewards(rollout.scores, mask, rollout.turn_rewards)
    coef_in_reward = kl_coef if config.kl_in == "reward" else 0.0
    penalties = torch.zeros_like(rewards)
    if config.reference:
        penalties = ppo.kl_penalties(rollout.logprobs, rollout.ref_logprobs, mask, coef_in_reward, config.kl_estimator)
    if config.whiten_rewards:
        rewards = ppo.whiten(rewards + penalties, mask, world.sum, shift_mean=False)
        penalties = torch.zeros_like(penalties)
    return TokenRewards(rewards, penalties)


def estimate_advantages(
    rewards: TokenRewards, values: Tensor, response_mask: Tensor, config: Config, world: World, iteration: int
) -> Advantages:
    """Advantages by the run's estimator, whitened once over the rollout of all ranks; `values` (B, T) in units of the rewards.

    If the rewards of every group are all equal, only KL penalties are left, and whitening, which would amplify them, is left out.
    """
    gae_lambda, by_turn = config.gae_lambda if config.use_gae else 1.0, config.credit == "turn"
    credit = ppo.Credit(config.gamma, gae_lambda, config.num_responses_per_prompt, by_turn=by_turn)
    estimator = ADVANTAGES[config.estimator.name]
    advantages, returns = estimator(rewards.earned, rewards.penalties, values, response_mask, credit)
    statistics: Metrics = {}
    all_flat = False
    if config.estimator.needs_groups:
        flat = ppo.flat_groups(rewards.earned, response_mask, credit).item()
        num_flat, num_groups = map(int, world.sum_numbers((flat, len(values) / credit.num_responses_per_prompt)))
        statistics, all_flat = {"ppo/flat_groups": num_flat}, num_flat == num_groups
        if all_flat:
            text = "iteration %d: the %d responses to each prompt have equal scores, for all %d prompts; there is nothing to "
            logger.warning(text + "learn from them but the KL", iteration, credit.num_responses_per_prompt, num_groups)
    if config.use_adv_normalize and not all_flat:
        advantages = ppo.whiten(advantages, response_mask, world.sum)
    if config.estimator.needs_critic:
        explained = ppo.explained_variance(values, returns, response_mask, world.sum)
        statistics = {"ppo/explained_variance": explained.item()}
    return Advantages(advantages, returns, statistics)
