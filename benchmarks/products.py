"""What an iteration would take if it were matrix products alone: of the tokens that it has to compute, on this machine, now.

M rows, I inputs, O outputs of a linear layer. Each token of a prompt is computed once for all responses to it, in sampling,
reference and update; a response's tokens once in each; logits only where a token is predicted. On the way back a frozen weight
needs one product (the gradient of its input), a trained one two. Adapters, attention, norms and the sampling itself count as
nothing, so a share of 1 cannot be reached.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import wait
from rlhf_dialog.models import cpu_linear
from rlhf_dialog.models.token_batch import TokenBatch, leaders
from rlhf_dialog.training.trainer import PPOTrainer

Shape = tuple[int, int, int]  # (M, I, O)
CALLS, SECONDS = 3, 0.05  # of each shape, at least


def shapes_of(trainer: PPOTrainer) -> Counter[Shape]:
    """The products of the newest rollout and of the update on it, and how often each is made."""
    rollout, policy, found = trainer.rollout, trainer.models.policy, Counter[Shape]()
    assert rollout is not None
    prompts, responses = (mask.sum(dim=1) for mask in (rollout.tokens.prompt_mask, rollout.tokens.response_mask))
    trunk, head = trunk_of(policy.lm.base_model), policy.lm.get_output_embeddings()
    is_first = first_of_each(rollout.tokens)

    def add(num_tokens: int, num_logits: int, times: int = 1) -> None:
        for (inputs, outputs), count in trunk.items():
            found[num_tokens, inputs, outputs] += count * times
        found[num_logits, head.in_features, head.out_features] += times

    for lengths in prompts[is_first].split(trainer.responder.limits.prompts_at_once):
        add(int(lengths.sum()), 0)
    for written in range(int(responses.max())):
        alive = int((responses > written).sum())
        add(alive if written else 0, alive)
    is_trained = any(p.requires_grad for name, p in policy.lm.named_parameters() if "lora" not in name)
    passes = 1 + trainer.config.ppo_epoch * (3 if is_trained else 2)
    for _, part in rollout.tokens.microbatches(trainer.update.microbatch_size):
        prompts, responses = part.prompt_mask.sum(dim=1), part.response_mask.sum(dim=1)
        behind = int((responses - 1).sum())
        add(int(prompts[first_of_each(part)].sum()) + behind, int(responses.sum()), passes)
    return Counter({shape: count for shape, count in found.items() if shape[0]})


def trunk_of(trunk: nn.Module) -> Counter[tuple[int, int]]:
    """Inputs and outputs of the linear layers that every token passes, without adapters."""
    layers = [module for name, module in trunk.named_modules() if "lora" not in name]
    weights = [getattr(module, "weight", None) for module in layers if not isinstance(module, nn.Embedding)]
    matrices = {
        id(w): w for w in weights if isinstance(w, Tensor) and w.ndim == 2
    }  # an adapter shows its base's weight
    return Counter((w.shape[1], w.shape[0]) for w in matrices.values())


def first_of_each(tokens: TokenBatch) -> Tensor:
    """Whether each row is the first of its prompt group."""
    assert tokens.prompt_groups is not None
    return leaders(tokens.prompt_groups) == torch.arange(len(tokens))


def seconds_of(shapes: Counter[Shape], device: torch.device, dtype: torch.dtype) -> float:
    """The time of all products, each shape measured, with the faster of the libraries that torch has for it."""
    return sum(count * _seconds(shape, device, dtype) for shape, count in shapes.items())


def _seconds(shape: Shape, device: torch.device, dtype: torch.dtype) -> float:
    rows, inputs, outputs = shape
    x, weight = (torch.randn(n, inputs, device=device).to(dtype) for n in (rows, outputs))
    ways = [nn.functional.linear, cpu_linear.multiply] if cpu_linear.fits(x) else [nn.functional.linear]
    return min(_timed(lambda way=way: way(x, weight)) for way in ways)  # type: ignore[misc]


def _timed(call: Callable[[], Any]) -> float:
    """The mean of some calls, after one that is not counted."""
    call()
    wait()
    start, calls, spent = time.perf_counter(), 0, 0.0
    while calls < CALLS or spent < SECONDS:
        call()
        wait()
        calls, spent = calls + 1, time.perf_counter() - start
    return spent / calls
