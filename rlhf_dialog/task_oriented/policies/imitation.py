"""Imitation: a learner's networks are fitted to the turns of another policy before the first update. N turns, A actions."""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from rlhf_dialog.task_oriented.policies.base import Episode
from rlhf_dialog.task_oriented.policies.ppo import PPO

NUM_EPOCHS, MINIBATCH, LR = 10, 128, 1e-3


def imitate(policy: PPO, episodes: Sequence[Episode], seed: int, num_epochs: int = NUM_EPOCHS) -> dict[str, float]:
    """Make the actions of whole episodes probable (cross-entropy under the masks), and their returns the critic's values.

    Returns `imitation/accuracy`, the share of the turns in which the policy's most probable action is that of the episode.
    """
    observations, masks, actions = (
        torch.from_numpy(np.concatenate([getattr(episode, name) for episode in episodes]))
        for name in ("observations", "masks", "actions")
    )
    returns = policy.take_in_returns(episodes)
    generator = torch.Generator().manual_seed(seed)
    policy.learner.set_lr(LR)
    for _ in range(num_epochs):
        for rows in torch.randperm(len(actions), generator=generator).split(MINIBATCH):
            logprobs = policy.logprobs(observations[rows], masks[rows])
            values = policy.learner.critic(observations[rows]).squeeze(-1)
            loss = functional.nll_loss(logprobs, actions[rows])
            loss = loss + functional.mse_loss(values, policy.normalizer.normalize(returns[rows]))
            policy.learner.step(loss, policy.args.max_grad_norm)
    policy.learner.forget_moments()
    with torch.inference_mode():
        right = policy.logprobs(observations, masks).argmax(dim=1) == actions
    return {"imitation/accuracy": right.float().mean().item()}
