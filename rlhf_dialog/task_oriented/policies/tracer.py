"""Trust region actor-critic with experience replay (1707.00130): A2C off-policy whose steps stay near an average network."""

from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.task_oriented.policies.a2c import A2C
from rlhf_dialog.task_oriented.policies.acer import trusted
from rlhf_dialog.task_oriented.policies.base import PolicyFactory, Setting, check_args, takes_also
from rlhf_dialog.task_oriented.policies.network import masked_logprobs


@PolicyFactory.register("tracer")
@takes_also(A2C)
class TRACER(A2C):
    """A2C; trust: how far a gradient of all weights may lead away from the average network, which follows by `average_share`."""

    has_average = True

    def __init__(self, setting: Setting, trust: float = 0.01, average_share: float = 0.05, **args: Any):
        check_args(float, 0.0, 1e6, trust=trust)
        check_args(float, 1e-9, 1.0, average_share=average_share)
        super().__init__(setting, **args)
        self.trust, self.slow_share = trust, average_share

    def _trusted(self, objective: Tensor, turns: dict[str, Tensor], logprobs: Tensor) -> Tensor:
        """What has the trusted gradient: the policy's weights times that gradient."""
        with torch.no_grad():
            average = masked_logprobs(self.learner.slow(turns["observations"]), turns["masks"])
        weights = list(self.learner.policy.parameters())
        divergence = (average.exp() * (average - logprobs)).sum(dim=1).mean()
        gradient, away = (
            torch.cat([part.flatten() for part in torch.autograd.grad(of, weights, retain_graph=True)])
            for of in (objective, divergence)
        )
        return torch.cat([part.flatten() for part in weights]) @ trusted(gradient, away, self.trust)
