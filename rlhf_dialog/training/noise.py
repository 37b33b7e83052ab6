"""The noise of the run's arithmetic, measured in the run: the yardstick of the run's own checks.

What a rounding error does to a log-probability depends on the model: more with each layer, with the sharpness of its predictions,
and with the largest activations, in 32 bits as in 16. So a run has no fixed tolerance. It computes some responses of its first
rollout a second time, with the frozen reference, in two batch shapes: the rows together, and each row alone with its own
beginning behind it once more, by the library's own attention. (Many kernels round a row alike beside any others, but not a
longer one.) `checks` compares with the difference. Neither the policy nor its sampling has a part in it, so a fault in them does
not raise the measure. Rows that change each other would, in policy and reference alike: so each row is computed alone as it is,
too, and the run ends where rows together are further from that than rounding, as between the two ways alone, explains.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.masks import last_token
from rlhf_dialog.models.packed_rows import pack
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.precision import HALF
from rlhf_dialog.models.sizes import num_positions
from rlhf_dialog.models.tries import REMEDIES
from rlhf_dialog.training.rollout import Rollout

logger = logging.getLogger(__name__)
ROWS = 16  # of each process
COARSE = 0.05  # nats of mean noise, of which the checks allow up to 20 times as much
LEAST_IN_16_BITS = (
    5e-4,
    0.015,
)  # nats, mean and largest; kernels that round equally in both shapes show less, or nothing at all
LEAST_IN_32_BITS = 1e-6, 1e-6
LEAK = 20  # times the rounding of rows that are alone, in the mean and at most: then rows change each other
UNITS = 4  # in the last place of a log-probability, at least: it is the difference of two numbers that are rounded
DRAWS = "the reference draws random numbers in eval mode (a dropout that is always on), which would pass for noise"
MEAN_IN_32_BITS = (
    0.1  # of the largest, at least: kernels for few rows, which sampling uses, round every token differently
)


@dataclass
class Noise:
    """Mean and largest |difference| in nats of log-probabilities that are equal but for rounding; before a measure the least.

    >>> Noise(mean=0.006, largest=0.04, num_bits=16)
    """

    mean: float = LEAST_IN_32_BITS[0]
    largest: float = LEAST_IN_32_BITS[1]
    num_bits: int = 32
    warned: bool = False  # whether a check has warned of a difference that is larger


def check_type(reference: Policy, num_bits: int) -> None:
    """Raises RunStopped for a reference in 16 bits in a run in 32, because its rounding would pass for noise."""
    types = {str(p.dtype).removeprefix("torch.") for p in reference.parameters() if p.dtype in HALF}
    if num_bits == 32 and (types or reference.use_amp):
        how = f"weights in {min(types)}" if types else "autocast"
        raise RunStopped(
            f"the reference computes in 16 bits, but the run in 32 ({how}), which would pass for noise. {REMEDIES['dtype']}"
        )


@torch.no_grad()
def differences(reference: Policy, rollout: Rollout, temperature: float) -> Tensor:
    """|differences| (K,) of the reference's log-probabilities for the first rows of the rollout, together and each longer alone.

    Draws no random number. Raises RunStopped when the reference does, in training or in eval mode, and when its rows change each
    other: both would pass for noise.
    """
    if any(module.training for module in reference.modules()):
        raise RunStopped("the reference is in training mode, so its dropout may be on; call eval() on it")
    rollout = rollout.in_segments()
    rows = range(min(ROWS, len(rollout)))
    if not rows:
        return rollout.ref_logprobs.new_empty(0)
    with no_draws(f"{DRAWS}. {REMEDIES['dropout']}"):
        together = _logprobs(reference, rollout, slice(0, len(rows)), temperature)
        alone, longer = (
            torch.cat([_logprobs(reference, rollout, slice(row, row + 1), temperature, more) for row in rows])
            for more in (0, 1)
        )
    rounding = UNITS * torch.finfo(together.dtype).eps * together.abs()
    _check_leak(reference, together - alone, torch.maximum((alone - longer).abs(), rounding))
    return torch.maximum((together - longer).abs(), rounding)


@contextmanager
def no_draws(refusal: str) -> Iterator[None]:
    """Raise RunStopped with the `refusal` when the block draws from torch's generators of the CPU or of the GPU."""
    before = _generators()
    yield
    if not all(torch.equal(x, y) for x, y in zip(before, _generators(), strict=True)):
        raise RunStopped(refusal)


def _generators() -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]


def _check_leak(reference: Policy, changes: Tensor, rounding: Tensor) -> None:
    """Raises RunStopped when rows have log-probabilities among others that rounding does not explain; all are (K,)."""
    is_coarse = reference.use_amp or any(parameter.dtype in HALF for parameter in reference.parameters())
    sizes = [x.double() for part in (changes.abs(), rounding) for x in (part.mean(), part.max())]
    mean, largest, *explained = torch.stack(sizes).tolist()  # the host waits once
    least = LEAST_IN_16_BITS if is_coarse else LEAST_IN_32_BITS
    explained = [max(x, y) for x, y in zip(explained, least, strict=True)]
    if mean > LEAK * explained[0] and largest > LEAK * explained[1]:
        raise RunStopped(
            "the reference gives the same responses other log-probabilities when other rows are computed beside them, by "
            f"{mean:.2g} nats in the mean, and rounding explains {explained[0]:.1g}. Cause (packing): rows of a batch change "
            f"each other. {REMEDIES['packing']}"
        )


def _logprobs(
    reference: Policy, rollout: Rollout, rows: slice, temperature: float, times_more: int | None = None
) -> Tensor:
    """The log-probabilities (K,) of the response tokens of some rows, without the columns that are padding in all of them.

    `times_more`: of one row, by the library's own attention; 1: with its first tokens behind it, as far as positions go.
    """
    prompt_mask, mask = (x[rows] for x in rollout.masks_on_host)
    start, width = int(prompt_mask.any(dim=0).int().argmax()), int(last_token(mask).max()) + 1
    prompt_ids, prompt_mask = rollout.prompt_ids[rows, start:], prompt_mask[:, start:]
    response_ids, mask = rollout.response_ids[rows, :width], mask[:, :width]
    packed = pack(prompt_ids, prompt_mask, response_ids, mask)
    targets, support = packed.targets, None if rollout.support is None else packed.gather(rollout.support[rows, :width])
    if times_more:
        positions = num_positions(reference.lm)
        more = packed.ids[: max(0, positions - len(packed.ids) - 1) if positions else None].unsqueeze(0)
        mask = torch.cat([mask, torch.ones(more.shape, dtype=torch.bool)], dim=1)
        packed = pack(prompt_ids, prompt_mask, torch.cat([response_ids, more], dim=1), mask)
    features, _ = reference.features(packed, padded=times_more is not None)
    return reference.predict(features[: len(targets)], targets, temperature, support, with_entropy=False)[0]


def noise_of(of_rank: Tensor, world: World, temperature: float, num_bits: int) -> Noise:
    """The noise in the `differences` of all ranks, at least LEAST_IN_16_BITS or LEAST_IN_32_BITS; with a line in the log.

    A temperature below 1 divides the logits, and multiplies their rounding errors.
    """
    largest = max(world.gather(of_rank.max().item() if len(of_rank) else 0.0))
    total, count = world.sum_numbers([of_rank.double().sum().item(), len(of_rank)])
    mean, scale = total / max(count, 1), 1 / min(temperature, 1.0)
    text = "rounding in %d bits changes log-probabilities by %.2g nats in the mean, %.2g at most"
    logger.log(logging.INFO if num_bits == 16 else logging.DEBUG, text, num_bits, mean, largest)
    if num_bits == 16 and mean > COARSE * scale:
        logger.warning(
            "rounding in 16 bits changes log-probabilities by %.2g nats in the mean, so the checks of the run see only large "
            "faults, and the updates are noisy; set precision: fp32",
            mean,
        )
    least_mean, least_largest = LEAST_IN_16_BITS if num_bits == 16 else LEAST_IN_32_BITS
    largest = max(largest, least_largest * scale)
    least_mean = max(least_mean * scale, MEAN_IN_32_BITS * largest if num_bits == 32 else 0.0)
    return Noise(max(mean, least_mean), largest, num_bits)
