"""Log-probabilities and entropies of tokens from logits, with one buffer in place of the six that autograd would keep.

K positions, V vocabulary, S kept tokens of a filter.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def at_least_float32(x: Tensor) -> Tensor:
    """A float64 tensor unchanged, any other as float32."""
    return x if x.dtype == torch.float64 else x.float()


def predict(
    logits: Tensor, targets: Tensor, temperature: float, support: Tensor | None, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities (K,) of `targets` (K,) under softmax(logits (K, V) / temperature), and that distribution's entropies.

    With a `support` (K, S) of token ids, padded with -1, the distribution is that of the kept tokens alone.
    """
    if support is None:
        logprobs, entropy = TokenPredictions.apply(logits, targets, temperature, with_entropy)
        return logprobs, entropy if with_entropy else None
    scaled = at_least_float32(logits) / temperature
    kept = on_support(scaled, support)
    whole = kept.logsumexp(dim=-1)
    logprobs = scaled.gather(1, targets.unsqueeze(1)).squeeze(1) - whole
    if not with_entropy:
        return logprobs, None
    probabilities = (kept - whole.unsqueeze(1)).exp()
    return logprobs, whole - (probabilities * kept.masked_fill(probabilities == 0, 0.0)).sum(dim=-1)


def kl_divergence(logits: Tensor, ref_logits: Tensor, temperature: float, support: Tensor | None) -> Tensor:
    """The KL divergence (K,) of softmax(logits / temperature) from the frozen softmax(ref_logits / temperature).

    With a `support` both are distributions over the kept tokens alone.
    """
    if support is None:
        return Divergence.apply(logits, ref_logits, temperature)
    scaled = (at_least_float32(x) / temperature for x in (logits, ref_logits.detach()))
    ours, theirs = (on_support(x, support).log_softmax(dim=-1) for x in scaled)
    empty = support < 0
    difference = (ours - theirs).masked_fill(empty, 0.0)
    return (ours.exp().masked_fill(empty, 0.0) * difference).sum(dim=-1)


def on_support(logits: Tensor, support: Tensor) -> Tensor:
    """The logits (..., S) of the kept tokens; -inf where the support is padded with -1."""
    return logits.gather(-1, support.clamp(min=0)).masked_fill(support < 0, -torch.inf)


class TokenPredictions(torch.autograd.Function):
    """Log-probability and entropy of a softmax, with explicit derivatives.

    With p = softmax(z), z = logits / temperature and entropy H: d log p_i / d z_j = [i = j] - p_j, d H / d z_j =
    -p_j (log p_j + H). Tokens of probability 0 add nothing to either.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float, with_entropy: bool) -> Any:
        scaled = _scale(logits, temperature)
        whole = scaled.logsumexp(dim=-1)
        logprobs = scaled.gather(1, targets.unsqueeze(1)).squeeze(1) - whole
        entropy = torch.zeros_like(whole)
        if with_entropy:
            weighted = (scaled - whole.unsqueeze(1)).exp_().mul_(scaled)
            entropy = whole - weighted.nan_to_num_(nan=0.0).sum(dim=-1)
        ctx.temperature, ctx.with_entropy = temperature, with_entropy
        ctx.save_for_backward(logits, targets, whole, entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_logprobs: Tensor, to_entropy: Tensor) -> Any:
        logits, targets, whole, entropy = ctx.saved_tensors
        scaled = _scale(logits, ctx.temperature)
        gradient = (scaled - whole.unsqueeze(1)).exp_()
        if ctx.with_entropy:
            slope = (scaled - (whole - entropy).unsqueeze(1)).mul_(to_entropy.unsqueeze(1))
            gradient.mul_(slope.add_(to_logprobs.unsqueeze(1))).nan_to_num_(nan=0.0).neg_()
        else:
            gradient.mul_(-to_logprobs.unsqueeze(1))
        gradient.scatter_add_(1, targets.unsqueeze(1), to_logprobs.unsqueeze(1))
        return gradient.div_(ctx.temperature).to(logits.dtype), None, None, None


class Divergence(torch.autograd.Function):
    """KL(p, q) of softmax distributions, with an explicit derivative for p alone.

    With p = softmax(z): d KL / d z_j = p_j (log p_j - log q_j - KL). Tokens of probability 0 add nothing.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ref_logits: Tensor, temperature: float) -> Tensor:
        ours, difference = Divergence._compare(logits, ref_logits, temperature)
        divergence = ours.exp_().mul_(difference).sum(dim=-1)
        ctx.temperature = temperature
        ctx.save_for_backward(logits, ref_logits, divergence)
        return divergence

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_divergence: Tensor) -> Any:
        logits, ref_logits, divergence = ctx.saved_tensors
        ours, difference = Divergence._compare(logits, ref_logits, ctx.temperature)
        gradient = difference.sub_(divergence.unsqueeze(1)).mul_(ours.exp_()).mul_(to_divergence.unsqueeze(1))
        return gradient.div_(ctx.temperature).to(logits.dtype), None, None

    @staticmethod
    def _compare(logits: Tensor, ref_logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """log p, and log p - log q (K, V), 0 where p is 0."""
        ours, theirs = (_scale(x, temperature).log_softmax(dim=-1) for x in (logits, ref_logits))
        return ours, (ours - theirs).masked_fill_(ours == -torch.inf, 0.0)


def _scale(logits: Tensor, temperature: float) -> Tensor:
    logits = at_least_float32(logits)
    return logits if temperature == 1 else logits / temperature
