"""Episodic natural actor-critic (Peters and Schaal 2008, for dialogues 1707.00130). K dialogues, P weights.

The return of a dialogue is fitted, by least squares, from the gradient of its log-probability. The coefficients of the fit are
the natural gradient, which does not depend on how the weights make the policy.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlhf_dialog.errors import RunStopped
from rlhf_dialog.task_oriented.policies.base import PolicyFactory, Setting, check_args
from rlhf_dialog.task_oriented.policies.network import NetworkPair, check_sizes, masked_logprobs, mlp
from rlhf_dialog.task_oriented.policies.replay import ReplayLearner

LONGEST = 100  # turns of a dialogue; of longer ones fewer are kept


@PolicyFactory.register("enac")
class ENAC(ReplayLearner):
    """A policy without a critic; each step learns from the newest `batch_size` dialogues.

    max_kl: the length of a step, as the KL of the policies before and after it that the fit expects, for a dialogue
    ridge: share of the mean squared gradient that is added to the least squares, because P is far above K
    """

    def __init__(
        self,
        setting: Setting,
        hidden_sizes: Sequence[int] = (130, 50),
        gamma: float = 0.99,
        max_kl: float = 0.05,
        ridge: float = 0.1,
        batch_size: int = 64,
        steps_per_dialogue: float = 0.0625,
    ):
        check_args(int, 2, 10**6, batch_size=batch_size)
        check_args(float, 0.0, 1.0, gamma=gamma)
        check_args(float, 1e-12, 1e6, max_kl=max_kl, ridge=ridge)
        super().__init__(setting, batch_size * LONGEST, steps_per_dialogue)
        self.gamma, self.max_kl, self.ridge, self.batch_size = gamma, max_kl, ridge, batch_size
        sizes = [setting.num_features, *check_sizes(hidden_sizes), setting.num_actions]
        network = mlp(sizes, torch.Generator().manual_seed(setting.seed), 0.01)
        self.learner = NetworkPair(network, nn.Identity(), lr=1.0)

    def _step(self, generator: torch.Generator) -> dict[str, float]:
        """One natural step: of this length, and without an optimizer."""
        gradients, returns = self.fitted(self.replay.newest(self.batch_size))
        natural = least_squares(gradients, returns, self.ridge)
        if not natural.isfinite().all():
            raise RunStopped(f"step {self.num_steps}: the natural gradient is not finite; the last checkpoint is kept")
        expected = ((gradients @ natural).square().mean() / 2).item()
        scale = math.sqrt(self.max_kl / max(expected, 1e-12))
        weights = list(self.learner.policy.parameters())
        with torch.no_grad():
            for own, part in zip(weights, natural.split([own.numel() for own in weights]), strict=True):
                own.add_(scale * part.view_as(own))
        return {"enac/return": returns.mean().item(), "enac/expected_kl": expected}

    def fitted(self, turns: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The gradients (K, P) of the log-probabilities of dialogues, and their discounted returns (K,)."""
        number = turns["ended"].cumsum(0) - turns["ended"].long()
        discounts = self.gamma ** turns["turn"].float()
        logprobs = masked_logprobs(self.learner.policy(turns["observations"]), turns["masks"])
        chosen = discounts * logprobs.gather(1, turns["actions"][:, None])[:, 0]
        zeros = torch.zeros(int(turns["ended"].sum()))
        weights = list(self.learner.policy.parameters())
        parts = torch.autograd.grad(
            zeros.index_add(0, number, chosen), weights, torch.eye(len(zeros)), is_grads_batched=True
        )
        gradients = torch.cat([part.flatten(1) for part in parts], dim=1)
        return gradients, zeros.index_add(0, number, discounts * turns["rewards"])


def least_squares(gradients: Tensor, returns: Tensor, ridge: float) -> Tensor:
    """The coefficients (P,) that fit returns (K,) from gradients (K, P) and a constant; `ridge` shrinks them."""
    centred = (gradients - gradients.mean(dim=0)).double()
    gram = centred @ centred.T
    gram += ridge * gram.diagonal().mean().clamp_min(1e-9) * torch.eye(len(gram))
    fit = torch.linalg.solve(gram, (returns - returns.mean()).double())
    return (centred.T @ fit).to(gradients.dtype)
