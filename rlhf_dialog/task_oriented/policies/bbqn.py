"""Bayes by backprop on the double Q-network (1505.05424; Lipton et al. 2016; 1711.11486). N rows, U units of all layers.

Each weight has a Gaussian. What a layer makes of one input is then Gaussian too, and its units are independent; so one standard
normal for each row and unit draws what drawn weights would give that row (1506.02557), and no weight is drawn.
"""

import math
from collections.abc import Sequence
from random import Random

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional

from rlhf_dialog.task_oriented.policies.arguments import STRICT, ranged
from rlhf_dialog.task_oriented.policies.base import Actions, Extras, Features, Masks, PolicyFactory
from rlhf_dialog.task_oriented.policies.dqn import DoubleQ, DoubleQArguments, best
from rlhf_dialog.task_oriented.policies.network import mlp


class BayesianLayers(nn.Module):
    """Layers with ReLU between them whose weights are Gaussian: `means`, and `rhos` with sigma = softplus(rho)."""

    def __init__(self, means: nn.Sequential, sigma: float):
        super().__init__()
        self.means = nn.ModuleList(layer for layer in means if isinstance(layer, nn.Linear))
        rho = math.log(math.expm1(sigma))
        self.rhos = nn.ParameterList(torch.full_like(weight, rho) for weight in self.means.parameters())
        self.units = [layer.out_features for layer in means if isinstance(layer, nn.Linear)]

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """(N, D) -> (N, A) of weights drawn for each row with the standard normal noise (N, U); without it of the means."""
        parts = [None] * len(self.units) if noise is None else noise.split(self.units, dim=1)
        for number, (layer, part) in enumerate(zip(self.means, parts, strict=True)):
            x = functional.relu(x) if number else x
            mean = layer(x)
            if part is not None:
                weight, bias = (functional.softplus(rho).square() for rho in self.rhos[2 * number : 2 * number + 2])
                mean = mean + functional.linear(x.square(), weight, bias).sqrt() * part
            x = mean
        return x

    def noise(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Standard normals (N, U)."""
        return torch.randn(num_rows, sum(self.units), generator=generator)

    def divergence(self, prior_sigma: float) -> Tensor:
        """KL of all weights from a Gaussian around 0 with this sigma."""
        pairs = zip(self.means.parameters(), self.rhos, strict=True)
        return torch.stack([gaussian_kl(mean, functional.softplus(rho), prior_sigma) for mean, rho in pairs]).sum()


@dataclass(frozen=True, config=STRICT)
class BBQNArguments(DoubleQArguments):
    """prior_sigma: of each weight before anything is known; initial_sigma: at the start; noise_sigma: of the targets

    kl_coef: weight of the divergence from the prior, which counts once for all turns of the replay
    """

    prior_sigma: float = ranged(0.2, 1e-9, 1e6)
    initial_sigma: float = ranged(0.02, 1e-9, 1e6)
    noise_sigma: float = ranged(1.0, 1e-9, 1e6)
    kl_coef: float = ranged(0.01, 0.0, 1e6)


@PolicyFactory.register("bbqn")
class BBQN(DoubleQ):
    """DQN that explores by weights drawn for each turn (Thompson sampling), not by epsilon; otherwise the slow means act."""

    arguments = BBQNArguments
    args: BBQNArguments

    @torch.inference_mode()
    def act(
        self, observations: Features, masks: Masks, deterministic: bool, streams: Sequence[Random] = ()
    ) -> tuple[Actions, Extras]:
        """observations (N, D), masks (N, A) -> actions (N,): the allowed ones of the highest value under drawn weights."""
        generators = [torch.Generator().manual_seed(stream.getrandbits(62)) for stream in streams]
        noise = None if deterministic else torch.stack([self.layers.noise(1, each)[0] for each in generators])
        layers = self.learner.slow if deterministic else self.layers
        return best(layers(torch.from_numpy(observations), noise), torch.from_numpy(masks)).numpy(), {}

    def _network(self, sizes: Sequence[int], generator: torch.Generator) -> nn.Module:
        self.layers = BayesianLayers(mlp(sizes, generator, 0.1, nn.ReLU), self.args.initial_sigma)
        return self.layers

    def _loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Minus the log-likelihood of the targets, which the mean weights make, and the share of the divergence."""
        turns = self.replay.turns(self.args.batch_size, generator)
        noise = self.layers.noise(self.args.batch_size, generator)
        values = self.layers(turns["observations"], noise).gather(1, turns["actions"][:, None])[:, 0]
        errors = (values - self.targets(turns)) / self.args.noise_sigma
        divergence = self.layers.divergence(self.args.prior_sigma)
        loss = errors.square().mean() / 2 + self.args.kl_coef * divergence / len(self.replay)
        return loss, {"bbqn/value": values.mean().item(), "bbqn/divergence": divergence.item()}


def gaussian_kl(mean: Tensor, sigma: Tensor, prior_sigma: float) -> Tensor:
    """The sum of KL(N(mean, sigma^2) || N(0, prior_sigma^2))."""
    ratio = (sigma / prior_sigma).square()
    return (ratio + (mean / prior_sigma).square() - 1 - ratio.log()).sum() / 2
