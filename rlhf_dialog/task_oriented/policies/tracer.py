"""Trust region actor-critic with experience replay (1707.00130): A2C off-policy whose steps stay near an average network."""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from rlhf_dialog.task_oriented.policies.a2c import A2C, A2CArguments
from rlhf_dialog.task_oriented.policies.acer import project_gradient
from rlhf_dialog.task_oriented.policies.arguments import STRICT, ranged
from rlhf_dialog.task_oriented.policies.base import PolicyFactory
from rlhf_dialog.task_oriented.policies.network import NetworkPair, masked_logprobs


@dataclass(frozen=True, config=STRICT)
class TRACERArguments(A2CArguments):
    """trust: how far a gradient of all weights may lead away from the average network, which follows by `average_share`"""

    trust: float = ranged(0.01, 0.0, 1e6)
    average_share: float = ranged(0.05, 1e-9, 1.0)


@PolicyFactory.register("tracer")
class TRACER(A2C):
    """A2C whose gradient is trusted near an average network only."""

    arguments = TRACERArguments
    args: TRACERArguments

    def _networks(self, generator: torch.Generator, slow_share: float = 0.0) -> NetworkPair:
        return super()._networks(generator, self.args.average_share)

    def _limit_objective(self, objective: Tensor, turns: dict[str, Tensor], logprobs: Tensor) -> Tensor:
        """What has the trusted gradient: the policy's weights times that gradient."""
        with torch.no_grad():
            average = masked_logprobs(self.learner.slow(turns["observations"]), turns["masks"])
        weights = list(self.learner.policy.parameters())
        divergence = (average.exp() * (average - logprobs)).sum(dim=1).mean()
        gradient, away = (
            torch.cat([part.flatten() for part in torch.autograd.grad(value, weights, retain_graph=True)])
            for value in (objective, divergence)
        )
        return torch.cat([part.flatten() for part in weights]) @ project_gradient(gradient, away, self.args.trust)
