"""Episodic natural actor-critic (Peters and Schaal 2008, for dialogues 1707.00130). K dialogues, P weights.

The return of a dialogue is fitted, by least squares, from the gradient of its log-probability. The coefficients of the fit are
the natural gradient, which does not depend on how the weights make the policy.
"""

import math

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from rlhf_dialog.errors import RunStopped
from rlhf_dialog.task_oriented.policies.arguments import STRICT, Sizes, constant, ranged
from rlhf_dialog.task_oriented.policies.base import PolicyFactory
from rlhf_dialog.task_oriented.policies.network import NetworkPair, masked_logprobs, mlp
from rlhf_dialog.task_oriented.policies.replay import IN_MEMORY, ReplayArguments, ReplayLearner

LONGEST = 100  # turns of a dialogue; of longer ones fewer are kept


@dataclass(frozen=True, config=STRICT)
class ENACArguments(ReplayArguments):
    """max_kl: the length of a step, as the KL of the policies before and after it that the fit expects, for a dialogue

    ridge: share of the mean squared gradient that is added to the least squares, because P is far above K
    The capacity follows from `batch_size`, dialogues for each step; there is no optimizer.
    """

    hidden_sizes: Sizes = (130, 50)
    lr: float = constant(1.0)
    capacity: int = constant(0)
    in_memory: int = constant(IN_MEMORY)
    batch_size: int = ranged(64, 2, 10**6)
    steps_per_dialogue: float = ranged(0.0625, 0.0, 1e6)
    max_grad_norm: float = constant(1e6)
    max_kl: float = ranged(0.05, 1e-12, 1e6)
    ridge: float = ranged(0.1, 1e-12, 1e6)

    def __post_init__(self) -> None:
        object.__setattr__(self, "capacity", self.batch_size * LONGEST)  # the way of a frozen dataclass


@PolicyFactory.register("enac")
class ENAC(ReplayLearner):
    """A policy without a critic; each step learns from the newest `batch_size` dialogues."""

    arguments = ENACArguments
    args: ENACArguments

    def _networks(self, generator: torch.Generator) -> NetworkPair:
        sizes = [self.setting.num_features, *self.args.hidden_sizes, self.setting.num_actions]
        return NetworkPair(mlp(sizes, generator, 0.01), nn.Identity(), self.args.lr)

    def _step(self, generator: torch.Generator) -> dict[str, float]:
        """One natural step: of this length, and without an optimizer."""
        gradients, returns = self.compute_gradients(self.replay.newest(self.args.batch_size))
        natural = least_squares(gradients, returns, self.args.ridge)
        if not natural.isfinite().all():
            raise RunStopped(f"step {self.num_steps}: the natural gradient is not finite")
        expected = ((gradients @ natural).square().mean() / 2).item()
        scale = math.sqrt(self.args.max_kl / max(expected, 1e-12))
        weights = list(self.learner.policy.parameters())
        with torch.no_grad():
            for weight, part in zip(weights, natural.split([weight.numel() for weight in weights]), strict=True):
                weight.add_(scale * part.view_as(weight))
        return {"enac/return": returns.mean().item(), "enac/expected_kl": expected}

    def compute_gradients(self, turns: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The gradients (K, P) of the log-probabilities of dialogues, and their discounted returns (K,)."""
        number = turns["ended"].cumsum(0) - turns["ended"].long()
        discounts = self.args.gamma ** turns["turn"].float()
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
