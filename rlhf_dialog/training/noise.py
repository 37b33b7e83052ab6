"""The noise of 16-bit arithmetic, measured in the run: the yardstick of the run's own checks.

What a rounding error does to a log-probability depends on the model: more with each layer, and with the sharpness of its
predictions. So a run in 16 bits has no fixed tolerance. It computes some responses of its first rollout a second time, with the
frozen reference, in two batch shapes: the rows together, and each row alone, by the library's own attention. `checks` compares
with the difference. Neither the policy nor its sampling has a part in it, so a fault in them does not raise the measure.
"""

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.masks import last_token
from rlhf_dialog.models.packing import pack
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.training.rollout import Rollout

logger = logging.getLogger(__name__)
ROWS = 16  # of each process
COARSE = 0.05  # nats of mean noise, of which the checks allow up to 20 times as much
LEAST_MEAN, LEAST_LARGEST = 5e-4, 0.015  # nats; kernels that round equally in both shapes show less, or nothing at all


@dataclass
class Noise:
    """Mean and largest |difference| in nats of log-probabilities that are equal but for rounding.

    >>> Noise(mean=0.006, largest=0.04)
    """

    mean: float
    largest: float
    warned: bool = False  # whether a check has warned of a difference that is larger


@torch.no_grad()
def differences(reference: Policy, rollout: Rollout, temperature: float) -> Tensor:
    """|differences| (K,) of the reference's log-probabilities for the first rows of the rollout, together and each row alone.

    Draws no random number. Raises RunStopped when dropout is on in the reference, because it would pass for noise.
    """
    if any(module.training for module in reference.modules()):
        raise RunStopped("the reference is in training mode, so its dropout may be on; call eval() on it")
    rollout = rollout.in_segments()
    rows = range(min(ROWS, len(rollout)))
    if not rows:
        return rollout.ref_logprobs.new_empty(0)
    together = _logprobs(reference, rollout, slice(0, len(rows)), temperature, padded=False)
    alone = [_logprobs(reference, rollout, slice(row, row + 1), temperature, padded=True) for row in rows]
    return (together - torch.cat(alone)).abs()


def _logprobs(reference: Policy, rollout: Rollout, rows: slice, temperature: float, padded: bool) -> Tensor:
    """The log-probabilities (K,) of the response tokens of some rows, without the columns that are padding in all of them."""
    prompt_mask, mask = (x[rows] for x in rollout.masks_on_host)
    start, width = int(prompt_mask.any(dim=0).int().argmax()), int(last_token(mask).max()) + 1
    response_ids = rollout.response_ids[rows, :width]
    packed = pack(rollout.prompt_ids[rows, start:], prompt_mask[:, start:], response_ids, mask[:, :width])
    support = None if rollout.support is None else packed.gather(rollout.support[rows, :width])
    features, _ = reference.features(packed, padded=padded)
    return reference.predict(features, packed.targets, temperature, support, with_entropy=False)[0]


def noise_of(of_rank: Tensor, world: World, temperature: float) -> Noise:
    """The noise in the `differences` of all ranks, at least LEAST_MEAN and LEAST_LARGEST; with a line in the log.

    A temperature below 1 divides the logits, and multiplies their rounding errors.
    """
    largest = max(world.gather(of_rank.max().item() if len(of_rank) else 0.0))
    total, count = world.sum_of([of_rank.double().sum().item(), len(of_rank)])
    mean, scale = total / max(count, 1), 1 / min(temperature, 1.0)
    logger.info("rounding in 16 bits changes log-probabilities by %.2g nats in the mean, %.2g at most", mean, largest)
    if mean > COARSE * scale:
        logger.warning(
            "rounding in 16 bits changes log-probabilities by %.2g nats in the mean, so the checks of the run see only large "
            "faults, and the updates are noisy; set precision: fp32",
            mean,
        )
    return Noise(max(mean, LEAST_MEAN * scale), max(largest, LEAST_LARGEST * scale))
