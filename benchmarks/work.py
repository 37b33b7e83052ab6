"""The least work of an update, in operations, for the speeds of scripts/benchmark.py."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rlhf_dialog.training.trainer import PPOTrainer


@dataclass
class Lap:
    """One iteration: its end, the number of generated tokens, and the lengths of its prompts and responses."""

    ended: float
    num_tokens: int
    prompts: list[int]
    responses: list[int]
    peak_gib: float


def update_gflop(trainer: PPOTrainer, laps: list[Lap]) -> float:
    """The minimum work of the update in one iteration, in 10**9 operations: no padding, logits only for response tokens.

    Forward, and twice as much for backward, in every epoch; a separate critic counts as another trunk.
    """
    lm, num_trunks = trainer.models.policy.lm, 1 + (trainer.models.critic is not None)
    head: Any = lm.get_output_embeddings()
    layers, width = lm.config.num_hidden_layers, lm.config.hidden_size
    weights, forward = num_weights(lm.base_model), 0
    for lap in laps:
        for prompt, response in zip(lap.prompts, lap.responses, strict=True):
            length = prompt + response
            forward += num_trunks * (2 * weights * length + 2 * layers * width * length**2)
            forward += 2 * head.weight.numel() * response
    return 3 * trainer.config.ppo_epoch * forward / len(laps) / 1e9


def num_weights(trunk: nn.Module) -> int:
    """The number of weights in the matrices that every token is multiplied with."""
    matrices = (module for module in trunk.modules() if not isinstance(module, nn.Embedding))
    weights = (getattr(module, "weight", None) for module in matrices)
    return sum(w.numel() for w in weights if isinstance(w, torch.Tensor) and w.ndim == 2)


def update_speed(gflop: float, seconds: float | None, ceiling: float) -> dict[str, float | None]:
    """The speed of the update in GFLOP/s of its minimum work, and as a share of the speed of a matrix product."""
    rate = gflop / seconds if seconds else None
    return {"least_gflop": gflop, "gflops": rate, "share_of_matmul": rate and rate / ceiling}
