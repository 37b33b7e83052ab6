"""What each token of a rollout has earned, and what policy and critic learn from it. B episodes, T response tokens."""

import logging
from collections.abc import Callable
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
# of earned, penalties, values, response_mask and the rules: advantages and returns, each (B, T)
AdvantageFunction = Callable[[Tensor, Tensor, Tensor, Tensor, ppo.Credit], tuple[Tensor, Tensor]]


class CreditAssignment:
    """Rewards, advantages, returns, targets and loss weights of a run's rollouts, by its estimator."""

    def __init__(self, config: Config, value_norm: ppo.ValueNormalizer | None, world: World):
        """`value_norm` learns from the returns of all ranks before it makes the targets."""
        self.config = config
        self.value_norm = value_norm
        self.world = world
        self.estimator = config.estimator
        self.advantages: AdvantageFunction = AdvantageFactory.find(self.estimator.name)
        self.rules = ppo.Credit(
            config.gamma,
            config.gae_lambda if config.use_gae else 1.0,
            config.num_responses_per_prompt,
            config.credit == "turn",
            config.group_std,
        )

    def __call__(self, collected: Collected, kl_coef: float, iteration: int) -> tuple[Rollout, Metrics]:
        """The rollout of what was collected, and the statistics of `estimate_advantages`."""
        config = self.config
        mask = collected.response_mask
        earned, penalties = self.token_rewards(collected, kl_coef)
        values = collected.values if self.value_norm is None else self.value_norm.denormalize(collected.values)
        advantages, returns, statistics = self.estimate_advantages(earned, penalties, values, mask, iteration)
        weights = ppo.loss_weights(mask, config.loss_average, config.max_new_tokens, collected.logprobs, self.world.sum)
        targets = returns
        if self.value_norm is not None and self.estimator.needs_critic:
            self.value_norm.update(returns, mask, self.world.sum)
            targets = self.value_norm.normalize(returns)
        rollout = Rollout(
            **vars(collected),
            rewards=earned + penalties,
            advantages=advantages,
            returns=returns,
            targets=targets,
            loss_weights=weights,
        )
        return rollout, statistics

    def token_rewards(self, collected: Collected, kl_coef: float) -> tuple[Tensor, Tensor]:
        """The per-token rewards of scored episodes in two parts, each (B, T): what was earned, and -kl_coef * KL.

        The first is the score and the environment's rewards, or under `whiten_rewards` the whitened sum of all; the second is 0
        then, and under `kl_in: loss`.
        """
        config = self.config
        mask = collected.response_mask
        rewards = ppo.score_rewards(collected.scores, mask, collected.turn_rewards)
        coef_in_reward = kl_coef if config.kl_in == "reward" else 0.0
        penalties = torch.zeros_like(rewards)
        if config.reference:
            penalties = ppo.kl_penalties(
                collected.logprobs, collected.ref_logprobs, mask, coef_in_reward, config.kl_estimator
            )
        if config.whiten_rewards:
            rewards = ppo.whiten(rewards + penalties, mask, self.world.sum, shift_mean=False)
            penalties = torch.zeros_like(penalties)
        return rewards, penalties

    def estimate_advantages(
        self, earned: Tensor, penalties: Tensor, values: Tensor, response_mask: Tensor, iteration: int
    ) -> tuple[Tensor, Tensor, Metrics]:
        """Advantages, whitened once over the rollout of all ranks, and returns, each (B, T), with statistics.

        `values` (B, T) and the returns are in units of the rewards. The statistics are the critic's explained variance, or the
        number of groups whose rewards are all equal. If that is all groups, only KL penalties are left, and whitening, which
        would amplify them, is left out.
        """
        who = f"advantage_estimator '{self.estimator.name}'"
        with as_user_error(who) if is_of_users(self.advantages) else nullcontext():
            advantages, returns = self.advantages(earned, penalties, values, response_mask, self.rules)
        for x in (advantages, returns):
            if x.shape != values.shape:
                wanted = f"two tensors {tuple(values.shape)}, advantages and returns"
                raise UserError(f"{who}: returned a tensor {tuple(x.shape)}; it must return {wanted}")
        statistics: Metrics = {}
        all_flat = False
        if self.estimator.needs_groups:
            size = self.rules.num_responses_per_prompt
            flat = ppo.flat_groups(earned, response_mask, self.rules).item()
            num_flat, num_groups = map(int, self.world.sum_numbers((flat, len(values) / size)))
            statistics = {"ppo/flat_groups": num_flat}
            all_flat = num_flat == num_groups
            if all_flat:
                text = "iteration %d: the %d responses to each prompt have equal scores, for all %d prompts; there is nothing "
                logger.warning(text + "to learn from them but the KL", iteration, size, num_groups)
        if self.config.use_adv_normalize and not all_flat:
            advantages = ppo.whiten(advantages, response_mask, self.world.sum)
        if self.estimator.needs_critic:
            explained = ppo.explained_variance(values, returns, response_mask, self.world.sum)
            statistics = {"ppo/explained_variance": explained.item()}
        return advantages, returns, statistics
