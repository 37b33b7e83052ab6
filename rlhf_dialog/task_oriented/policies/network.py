"""The networks of a learner at act level: layers, drawing from masked probabilities, one optimizer, and their files."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.json_files import FAULTS, damage_as_user_error, load_json
from rlhf_dialog.models.weights import check_moments

STATE, WEIGHTS, OPTIMIZER = "policy.json", "policy.safetensors", "optimizer.safetensors"


def mlp(
    sizes: Sequence[int], generator: torch.Generator, last_gain: float, between: Callable[[], nn.Module] = nn.Tanh
) -> nn.Sequential:
    """Linear layers with tanh or another function between them, orthogonal weights and no bias at the start."""
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(pairwise(sizes)):
        linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
        is_last = number == len(sizes) - 2
        nn.init.orthogonal_(linear.weight, last_gain if is_last else math.sqrt(2), generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear] if is_last else [linear, between()]
    return nn.Sequential(*layers)


def masked_logprobs(scores: Tensor, masks: Tensor) -> Tensor:
    """Log-probabilities (N, A) from scores (N, A); those that the mask forbids have the probability 0."""
    return scores.masked_fill(~masks, -1e9).log_softmax(dim=1)


def categorical(logprobs: Tensor, draws: Sequence[float]) -> Tensor:
    """Actions (N,) from logprobs (N, A) and one uniform number for each row: the first whose cumulative probability is above it.

    An action with the probability 0 is never drawn.
    """
    probabilities = logprobs.double().exp().numpy()
    cumulative = probabilities.cumsum(axis=1)
    above = cumulative > np.array(draws)[:, None] * cumulative[:, -1:]
    last = probabilities.shape[1] - 1 - (probabilities[:, ::-1] > 0).argmax(axis=1)
    return torch.from_numpy(np.where(above.any(axis=1), above.argmax(axis=1), last))


def draw_actions(logprobs: Tensor, deterministic: bool, streams: Sequence[Random]) -> tuple[Tensor, Tensor]:
    """Actions (N,) and their logprobs (N,): one number of each stream draws an action, or the most probable ones."""
    actions = logprobs.argmax(dim=1) if deterministic else categorical(logprobs, [s.random() for s in streams])
    return actions, logprobs.gather(1, actions[:, None])[:, 0]


class NetworkPair(nn.Module):
    """Policy and critic with one optimizer (Adam, eps 1e-5), and with `slow_share` a slow copy of the policy, `slow`, which
    moves by this share of the way to the policy after each step.
    """

    slow: nn.Module

    def __init__(self, policy: nn.Module, critic: nn.Module, lr: float, slow_share: float = 0.0):
        super().__init__()
        self.policy, self.critic = policy, critic
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr, eps=1e-5)
        self.slow_share = slow_share
        if slow_share:
            self.slow = deepcopy(policy).requires_grad_(False)

    def set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def step(self, loss: Tensor, max_grad_norm: float) -> float:
        """Make one step, and return the norm of the gradient before it was clipped (policy and critic each for itself)."""
        self.optimizer.zero_grad()
        loss.backward()
        parts = [list(part.parameters()) for part in (self.policy, self.critic)]
        norms = [nn.utils.clip_grad_norm_(part, max_grad_norm) for part in parts if part]
        self.optimizer.step()
        if self.slow_share:
            with torch.no_grad():
                for weight, leading in zip(self.slow.parameters(), self.policy.parameters(), strict=True):
                    weight.lerp_(leading, self.slow_share)
        return norms[0].item()


def save_networks(networks: NetworkPair, folder: Path, state: dict[str, Any]) -> None:
    """Write networks, optimizer and the rest of a policy's state."""
    save_file(networks.state_dict(), folder / WEIGHTS)
    moments = networks.optimizer.state_dict()["state"]
    save_file({f"{n}.{k}": x for n, tensors in moments.items() for k, x in tensors.items()}, folder / OPTIMIZER)
    write_json(folder / STATE, state)


def load_networks(networks: NetworkPair, folder: Path, shape: Any = dict[str, Any]) -> dict[str, Any]:
    """Restore what `save_networks` wrote; returns the state, which has the types of `shape`.

    Raises UserError when the files do not fit.
    """
    faults = (*FAULTS, RuntimeError, SafetensorError)
    with damage_as_user_error(f"{folder}: does not fit this policy, or is damaged: ", faults=faults):
        weights = load_file(folder / WEIGHTS)
        if wrong := [name for name, x in weights.items() if not x.isfinite().all()]:
            raise ValueError(f"{wrong[0]} in {WEIGHTS} has a number that is NaN or infinite")
        networks.load_state_dict(weights)
        moments: dict[int, dict[str, Tensor]] = {}
        for name, x in load_file(folder / OPTIMIZER).items():
            number, key = name.split(".")
            moments.setdefault(int(number), {})[key] = x
        check_moments(networks.optimizer, moments)
        networks.optimizer.load_state_dict(networks.optimizer.state_dict() | {"state": moments})
        return dict(load_json(folder / STATE, shape))
