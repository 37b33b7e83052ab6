"""A night that moves too far ends early, and goes back to where the guards pass, so that not all of it is refused."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rlhf_dialog.feedback.learning.guards import GuardLimit, GuardMeasurement
from rlhf_dialog.feedback.learning.learner import Learner
from rlhf_dialog.models.lora import trainable_parameters

ROOM = 0.05  # below a limit, or above it: tomorrow's held-out prompts are others
ROUNDS = 5  # of bisection: the share is a multiple of 1/32


def step_back(learner: Learner, load_checkpoint: Callable[[], Learner], guards: GuardMeasurement) -> float:
    """Interpolate the weights between those of a checkpoint and the learner's until all guards have room.

    Where the checkpoint itself has none, the weights go on towards those of the first version. Returns the share of the change
    since the checkpoint that is kept: the largest of those that were tried, 1 where nothing had to go.
    """
    if not without_room(guards.measure()):
        return 1.0
    share = _bisect(learner, load_checkpoint().parameters, guards)
    if share == 0 and without_room(guards.measure()):
        _bisect(learner, _first_weights(learner), guards)
    return share


def without_room(guards: Sequence[GuardLimit]) -> list[GuardLimit]:
    """Those that are not well within their limits; what is not a number is left to the gate."""
    signs = [1 if guard.at_most else -1 for guard in guards]
    return [
        guard
        for sign, guard in zip(signs, guards, strict=True)
        if math.isfinite(guard.value) and sign * guard.value > sign * guard.limit * (1 - sign * ROOM)
    ]


def _bisect(learner: Learner, before: Sequence[Tensor], guards: GuardMeasurement) -> float:
    """Give the learner the weights between `before` and its own that are farthest from `before`; returns their share."""
    after = [parameter.detach().clone() for parameter in learner.parameters]
    kept, lost = 0.0, 1.0
    for _ in range(ROUNDS):
        share = (kept + lost) / 2
        _interpolate(learner, before, after, share)
        kept, lost = (kept, share) if without_room(guards.measure()) else (share, lost)
    _interpolate(learner, before, after, kept)
    return kept


def _first_weights(learner: Learner) -> list[Tensor]:
    """Those of the first version; adapters that change nothing are zero."""
    if learner.settings.use_lora:
        return [torch.zeros_like(parameter) for parameter in learner.parameters]
    first = dict(learner.reference_policy.named_parameters())
    return [first[name] for name in trainable_parameters(learner.policy)]


@torch.no_grad()
def _interpolate(learner: Learner, before: Sequence[Tensor], after: Sequence[Tensor], share: float) -> None:
    for parameter, old, new in zip(learner.parameters, before, after, strict=True):
        parameter.copy_(torch.lerp(old, new, share))
