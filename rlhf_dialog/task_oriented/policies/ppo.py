"""PPO on masked actions with the formulas of the language models (`training/ppo.py`). N rows, D features, A actions; B, T there.

An episode is one row of the batch, so that no advantage leaks over the end of a dialogue. Only a dialogue that was cut because
the batch was full is bootstrapped: the value of what followed is added to its last reward. The turn limit is an end.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, FiniteFloat
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional

from rlhf_dialog.errors import RunStopped
from rlhf_dialog.task_oriented.policies import network
from rlhf_dialog.task_oriented.policies.arguments import STRICT, Sizes, ranged, read_arguments
from rlhf_dialog.task_oriented.policies.base import Actions, Episode, Extras, Features, Masks, PolicyFactory, PolicySpec
from rlhf_dialog.training import ppo

MOST_LOG_RATIO = 1e-3  # of a policy that has not moved yet: what rounding in another batch size may do
VALUE_MEMORY = 0.7  # a rollout ago: at the start returns change within few rollouts, and the critic must follow


@dataclass(frozen=True, config=STRICT)
class PPOArguments:
    """hidden_sizes: units of the layers; lr: of Adam, falling to `final_lr` of it where the number of updates is known

    gamma, gae_lambda, clip_param, entropy_coef, max_grad_norm: as in PPO
    ppo_epoch: passes over a rollout; minibatch_size: turns for each optimizer step
    """

    hidden_sizes: Sizes = (128, 64)
    lr: float = ranged(1e-3, 1e-9, 1.0)
    final_lr: float = ranged(1.0, 0.0, 1.0)
    gamma: float = ranged(0.99, 0.0, 1.0)
    gae_lambda: float = ranged(0.95, 0.0, 1.0)
    clip_param: float = ranged(0.2, 1e-9, 1.0)
    entropy_coef: float = ranged(0.01, 0.0, 1e6)
    max_grad_norm: float = ranged(0.5, 1e-9, 1e6)
    ppo_epoch: int = ranged(5, 1, 10**6)
    minibatch_size: int = ranged(128, 1, 10**6)


class Sums(BaseModel):
    """What `ValueNormalizer` counts."""

    mean_sum: FiniteFloat
    square_sum: FiniteFloat
    weight: FiniteFloat


class PPOState(BaseModel):
    """What the file of this policy has besides tensors."""

    num_updates: int
    normalizer: Sums


@PolicyFactory.register("ppo")
class PPO:
    """A policy and a critic, each a small network; both learn from whole rollouts.

    Raises UserError for an argument that cannot be used, and RunStopped when a number is not finite, or the stored
    log-probabilities are not those of this policy.
    """

    arguments = PPOArguments

    def __init__(self, setting: PolicySpec, **args: Any):
        self.setting, self.args = setting, read_arguments(self.arguments, args)
        generator = torch.Generator().manual_seed(setting.seed)
        sizes = [setting.num_features, *self.args.hidden_sizes]
        policy = network.mlp([*sizes, setting.num_actions], generator, last_gain=0.01)
        critic = network.mlp([*sizes, 1], generator, last_gain=1.0)
        self.learner = network.NetworkPair(policy, critic, self.args.lr)
        self.normalizer, self.num_updates = ppo.ValueNormalizer(beta=VALUE_MEMORY), 0
        self._episodes: list[Episode] = []

    @torch.inference_mode()
    def act(
        self, observations: Features, masks: Masks, deterministic: bool, streams: Sequence[Random] = ()
    ) -> tuple[Actions, Extras]:
        """observations (N, D), masks (N, A) -> actions (N,), their logprobs (N,) and values (N,).

        One number of each stream draws an action; `deterministic` takes the most probable one.
        """
        logprobs = self.logprobs(torch.from_numpy(observations), torch.from_numpy(masks))
        actions, chosen = network.draw_actions(logprobs, deterministic, streams)
        values = self._values(torch.from_numpy(observations))
        return actions.numpy(), {"logprobs": chosen.numpy(), "values": values.numpy()}

    def logprobs(self, observations: Tensor, masks: Tensor) -> Tensor:
        """Log-probabilities (N, A) of all actions; those that the mask forbids have the probability 0."""
        return network.masked_logprobs(self.learner.policy(observations), masks)

    def observe(self, episode: Episode) -> None:
        self._episodes.append(episode)

    def update(self) -> dict[str, float]:
        """Learn from the episodes since the last update: advantages once, then `ppo_epoch` passes in minibatches."""
        rollout = self._rollout()
        self._episodes = []
        done = min(self.num_updates / self.setting.num_updates, 1.0) if self.setting.num_updates else 0.0
        self.learner.set_lr(self.args.lr * (1.0 - done * (1.0 - self.args.final_lr)))
        generator = torch.Generator().manual_seed(self.setting.seed * 1_000_003 + self.num_updates + 1)
        steps: list[dict[str, float]] = []
        for _ in range(self.args.ppo_epoch):
            for rows in torch.randperm(len(rollout["actions"]), generator=generator).split(self.args.minibatch_size):
                steps.append(self._step({name: column[rows] for name, column in rollout.items()}, is_first=not steps))
        self.num_updates += 1
        means = {f"ppo/{name}": sum(step[name] for step in steps) / len(steps) for name in steps[0]}
        mask = torch.ones_like(rollout["returns"], dtype=torch.bool)
        explained = ppo.explained_variance(rollout["old_values"], rollout["returns"], mask)
        return means | {"ppo/explained_variance": explained.item()}

    def save(self, folder: str | Path) -> None:
        state = {"num_updates": self.num_updates, "normalizer": self.normalizer.state_dict()}
        network.save_networks(self.learner, Path(folder), state)

    def load(self, folder: str | Path) -> None:
        state = network.load_networks(self.learner, Path(folder), PPOState)
        self.num_updates = state["num_updates"]
        self.normalizer.load_state_dict(state["normalizer"])

    def _values(self, observations: Tensor) -> Tensor:
        return self.normalizer.denormalize(self.learner.critic(observations).squeeze(-1))

    @torch.inference_mode()
    def _bootstrap_rewards(self, episode: Episode) -> Tensor:
        """The rewards (T,); the last one of a dialogue that goes on elsewhere has the value of what followed."""
        rewards = torch.from_numpy(episode.rewards.copy())
        if not episode.ended:
            rewards[-1] += self.args.gamma * self._values(torch.from_numpy(episode.last_observation[None]))[0]
        return rewards

    def advantages(self, episodes: Sequence[Episode], gae_lambda: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """GAE of episodes: advantages, returns and mask, (B, T) each."""
        gae_lambda = self.args.gae_lambda if gae_lambda is None else gae_lambda
        rows = [self._bootstrap_rewards(episode) for episode in episodes]
        rewards = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        rows = [torch.from_numpy(episode.values) for episode in episodes]
        values = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(episode) for episode in episodes])
        mask = torch.arange(rewards.shape[1]) < lengths.unsqueeze(1)
        return *ppo.gae(rewards, values, mask, self.args.gamma, gae_lambda), mask

    def _rollout(self) -> dict[str, Tensor]:
        """All turns as rows: what each was, and what it was worth."""
        episodes = self._episodes
        advantages, returns, mask = self.advantages(episodes)
        self.normalizer.update(returns, mask)
        names = {name: name for name in ("observations", "masks", "actions")}
        names |= {"old_logprobs": "logprobs", "old_values": "values"}
        columns = {key: np.concatenate([getattr(episode, name) for episode in episodes]) for key, name in names.items()}
        rollout = {key: torch.from_numpy(column) for key, column in columns.items()}
        return rollout | {"advantages": ppo.whiten(advantages, mask)[mask], "returns": returns[mask]}

    def _step(self, turns: dict[str, Tensor], is_first: bool) -> dict[str, float]:
        """One optimizer step on these turns; returns statistics."""
        logprobs = self.logprobs(turns["observations"], turns["masks"])
        chosen = logprobs.gather(1, turns["actions"].unsqueeze(1)).squeeze(1)
        mask = torch.ones_like(turns["actions"], dtype=torch.bool)
        log_ratio = (chosen - turns["old_logprobs"]).detach()
        if is_first and not (worst := log_ratio.abs().max().item()) <= MOST_LOG_RATIO:
            raise RunStopped(
                f"the log-probability of a sampled action differs by {worst:.3g} from that of the same policy before its first "
                "step; the actions were sampled with another policy, or with other masks"
            )
        old_logprobs, unread = turns["old_logprobs"], torch.full_like(chosen, torch.nan)
        clip, ones = ppo.Clip(self.args.clip_param, self.args.clip_param), torch.ones_like(old_logprobs)
        inputs = ppo.LossInputs(chosen, old_logprobs, unread, turns["advantages"], ones, mask, mask.sum(), clip)
        policy_loss, sums = ppo.clip_loss(inputs)
        entropy = -(logprobs.exp() * logprobs).sum(dim=1).mean()
        normalize = self.normalizer.normalize
        values = self.learner.critic(turns["observations"]).squeeze(-1)
        value_loss = ppo.value_loss(values, normalize(turns["old_values"]), normalize(turns["returns"]), mask)
        loss = policy_loss - self.args.entropy_coef * entropy + value_loss
        if not loss.isfinite():
            raise RunStopped(f"update {self.num_updates + 1}: the loss is {loss.item()}")
        norm = self.learner.step(loss, self.args.max_grad_norm)
        return {
            "policy_loss": policy_loss.item(),
            "value_loss": value_loss.item(),
            "entropy": entropy.item(),
            "clip_fraction": sums["clip_fraction"].item(),
            "approx_kl": (log_ratio.exp() - 1 - log_ratio).mean().item(),
            "grad_norm": norm,
        }


NUM_EPOCHS, MINIBATCH, LR = 10, 128, 1e-3


def imitate(policy: PPO, episodes: Sequence[Episode], seed: int) -> dict[str, float]:
    """Make the actions of whole episodes probable (cross-entropy under the masks), and their returns the critic's values.

    Returns `imitation/accuracy`, the share of the turns in which the policy's most probable action is that of the episode.
    """
    observations, masks, actions = (
        torch.from_numpy(np.concatenate([getattr(episode, name) for episode in episodes]))
        for name in ("observations", "masks", "actions")
    )
    _, returns, mask = policy.advantages(episodes, gae_lambda=1.0)
    policy.normalizer.update(returns, mask)
    returns = returns[mask]
    generator = torch.Generator().manual_seed(seed)
    policy.learner.set_lr(LR)
    for _ in range(NUM_EPOCHS):
        for rows in torch.randperm(len(actions), generator=generator).split(MINIBATCH):
            logprobs = policy.logprobs(observations[rows], masks[rows])
            values = policy.learner.critic(observations[rows]).squeeze(-1)
            loss = functional.nll_loss(logprobs, actions[rows])
            loss = loss + functional.mse_loss(values, policy.normalizer.normalize(returns[rows]))
            policy.learner.step(loss, policy.args.max_grad_norm)
    policy.learner.optimizer.state.clear()
    with torch.inference_mode():
        right = policy.logprobs(observations, masks).argmax(dim=1) == actions
    return {"imitation/accuracy": right.float().mean().item()}
