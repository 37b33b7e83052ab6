"""The checks that every run makes: each raises RunStopped before a fault can spoil an optimizer step.

The tolerance is measured in each run, because rounding errors grow with layers, sharp predictions and large activations.
The frozen reference (under `reference: false` the policy) computes some responses of the first rollout twice: the rows together,
and each row alone with its own beginning behind it once more, by the library's attention, because many kernels round a row alike
beside any others, but not a longer one. A fault of the policy or its sampling does not raise the tolerance.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.masks import apply_mask, masked_mean
from rlhf_dialog.models.policy import Policy, num_positions
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.training.ppo import AdaptiveKLController

logger = logging.getLogger(__name__)
WARN, STOP = 4, 20  # multiples of the measured noise
ENGINE_LIMITS = {16: (2, 3), 32: (5, 20)}  # by bits: the same two, for the mean of what an engine differs
ROWS = 8  # of each process, computed together
RARE_IN_32_BITS = 10  # rare tokens round so many times as much as others, and ROWS rows may have none
COARSE = 0.05  # nats of mean noise, of which the checks allow up to 20 times as much
# nats, mean and largest; kernels that round equally in both shapes show less, or nothing
LEAST_IN_16_BITS, LEAST_IN_32_BITS = (5e-4, 0.015), (1e-6, 1e-6)
UNITS = 4  # in the last place of a log-probability, at least: it is the difference of two numbers that are rounded
TRY = (
    "Try precision: fp32, where the check is finer, then packing: false, then a model that uses the attention_mask and the "
    "position_ids that it gets, and draws nothing in eval mode"
)
MEAN_IN_32_BITS = 0.1  # of the largest, at least: kernels for few rows, as in sampling, round every token differently


@dataclass
class Noise:
    """Mean and largest |difference| in nats of log-probabilities that are equal but for rounding; before a measure the least.

    >>> Noise(mean=0.006, largest=0.04, num_bits=16)
    """

    mean: float = LEAST_IN_32_BITS[0]
    largest: float = LEAST_IN_32_BITS[1]
    num_bits: int = 32
    is_measured: bool = False
    warned: bool = False  # whether a check has warned of a difference that is larger
    warned_of_engine: bool = False


@torch.no_grad()
def measure_rounding(name: str, model: Policy, tokens: TokenBatch, temperature: float) -> Tensor:
    """|differences| (K,) of the model's log-probabilities for ROWS rows, spread evenly, together and each longer alone.

    Raises RunStopped when the model, called `name` there, draws random numbers, which would pass for noise.
    """
    num_rows = min(len(tokens), ROWS)
    if not num_rows:
        return torch.empty(0, device=tokens.device)
    tokens = replace(tokens.rows(torch.arange(num_rows) * len(tokens) // num_rows), prompt_groups=None)
    states: list[Callable[[], Tensor]] = [torch.get_rng_state]
    states += [torch.cuda.get_rng_state] if torch.cuda.is_initialized() else []
    before, rows = [state() for state in states], [tokens.rows(slice(i, i + 1)) for i in range(num_rows)]
    together = _predict(model, tokens, temperature)
    longer = torch.cat([_predict(model, row, temperature, longer=True) for row in rows])
    if not all(torch.equal(x, y) for x, y in zip(before, (state() for state in states), strict=True)):
        raise RunStopped(f"the {name} draws random numbers (a dropout that is on), which would pass for noise. {TRY}")
    return torch.maximum((together - longer).abs(), UNITS * torch.finfo(together.dtype).eps * together.abs())


def _predict(model: Policy, tokens: TokenBatch, temperature: float, longer: bool = False) -> Tensor:
    """The log-probabilities (K,) of the response tokens, without the columns that are padding in all rows.

    `longer`: of one row, by the library's own attention, with its first tokens behind it, as far as positions go.
    """
    tokens = tokens.without_padding()
    packed = fed = tokens.pack()
    if longer:
        positions = num_positions(model.lm)
        more = packed.ids[: max(0, positions - len(packed.ids) - 1) if positions else None].unsqueeze(0)
        mask = torch.cat([tokens.response_mask, torch.ones(more.shape, dtype=torch.bool)], dim=1)
        fed = tokens.with_responses(torch.cat([tokens.response_ids, more], dim=1), mask).pack()
    features, _ = model.features(fed, padded=longer)
    return model.predict(features[: len(packed.targets)], packed, temperature).logprobs


def combine_rounding(rounding: Tensor, world: World, temperature: float, num_bits: int) -> Noise:
    """The noise that all ranks measured, at least LEAST_IN_16_BITS or LEAST_IN_32_BITS; with a line in the log.

    A temperature below 1 divides the logits, and multiplies their rounding errors.
    """
    largest = max(world.gather(rounding.max().item() if len(rounding) else 0.0))
    total, count = world.sum_numbers([rounding.double().sum().item(), len(rounding)])
    mean, scale = total / max(count, 1), 1 / min(temperature, 1.0)
    text = "rounding in %d bits changes log-probabilities by %.2g nats in the mean, %.2g at most"
    logger.log(logging.INFO if num_bits == 16 else logging.DEBUG, text, num_bits, mean, largest)
    if num_bits == 16 and mean > COARSE * scale:
        effect = "the checks of the run see only large faults, and the updates are noisy; set precision: fp32"
        logger.warning("rounding in 16 bits changes log-probabilities by %.2g nats in the mean, so %s", mean, effect)
    least_mean, least_largest = LEAST_IN_16_BITS if num_bits == 16 else LEAST_IN_32_BITS
    largest = max(largest, least_largest * scale)
    if num_bits == 32:
        mean, largest = max(mean, MEAN_IN_32_BITS * largest), RARE_IN_32_BITS * largest
    return Noise(max(mean, least_mean * scale), largest, num_bits, is_measured=True)


def all_finite(numbers: dict[str, float]) -> bool:
    """Whether no value is NaN or inf."""
    return all(map(math.isfinite, numbers.values()))


def check_numbers(predictions: dict[str, Tensor], mask: Tensor, dialogues: Sequence[Dialogue], iteration: int) -> None:
    """Raise RunStopped when a model predicts NaN or inf: its weights are bad, and skipping steps would not fix them.

    `predictions`: name of the model -> (B, T).
    """
    is_bad = torch.stack([(mask & ~x.isfinite()).any(dim=1) for x in predictions.values()])
    for model, bad_rows in zip(predictions, is_bad.tolist(), strict=True):
        if bad := [row for row, is_row_bad in enumerate(bad_rows) if is_row_bad]:
            names = prompt_names([dialogues[i] for i in bad])
            raise RunStopped(
                f"iteration {iteration}: the {model} gives NaN or inf for {len(bad)} of {len(dialogues)} responses "
                f"before any update (prompts: {names}), so its weights are not usable"
            )


def prompt_names(dialogues: Sequence[Dialogue], at_most: int = 16) -> str:
    """The split and index of each prompt, without repeats: `train 3, train 7 and 2 more`."""
    names = [f"{d.origin_of('split', 'prompt')} {d.origin_of('index', '?')}" for d in dialogues]
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more


def difference_statistics(difference: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """The largest and the mean size of differences (B, T) of log-probabilities, which are 0 outside of the mask, and the number
    of tokens: three scalars."""
    size = difference.abs()
    return {"largest": size.max(), "mean": masked_mean(size, mask), "tokens": mask.sum().to(size.dtype)}


def check_start(difference: Tensor, mask: Tensor, noise: Noise, world: World) -> None:
    """Raise RunStopped unless policy and reference are equal but for the `noise`, in a fresh run that starts from its reference.

    Another difference (B, T) of their log-probabilities comes from an error in masks, positions or dropout.
    """
    size = apply_mask(difference, mask).abs()
    largest = max(world.gather(size.max().item() if len(size) else 0.0))
    mean = masked_mean(size, mask, world.sum).item()
    tokens = world.sum(mask.sum()).item()
    _compare("the policy starts as its own reference, but their log-probabilities differ", largest, mean, noise, tokens)


def check_ratio(largest: float, mean: float, tokens: float, iteration: int, noise: Noise) -> None:
    """Raise RunStopped unless every ratio is 1 before the first optimizer step, by the largest and the mean |log ratio|."""
    if not math.isfinite(largest):  # then the loss is not finite either, and the step is skipped
        return
    text = f"iteration {iteration}: the ratio of new to old probabilities is not 1 on the first minibatch"
    _compare(f"{text}, and sampling and update differ", largest, mean, noise, tokens)


def _compare(text: str, largest: float, mean: float, noise: Noise, tokens: float) -> None:
    """Warn above WARN times the noise, and raise RunStopped above STOP times; the first warning of a run is the only one.

    Both sizes count, the largest and the mean over `tokens` tokens: a few may have the largest noise, which their mean shows.
    """
    times = max(largest / noise.largest, mean / (noise.mean + noise.largest / max(tokens, 1.0)))
    if times <= WARN:
        return
    text = (
        f"{text} by {mean:.3g} nats in the mean and {largest:.3g} at most, {times:.1f} times the rounding noise that this run "
        f"measured ({noise.mean:.3g} and {noise.largest:.3g})"
    )
    if not times <= STOP:
        raise RunStopped(f"{text}; up to {STOP} times are allowed. {TRY}")
    if not noise.warned:
        noise.warned = True
        remedy = ". Run it once with precision: fp32" if noise.num_bits == 16 else ""
        logger.warning("%s; the run goes on, and stops above %d times%s", text, STOP, remedy)


def check_engine(metrics: dict[str, float], iteration: int, noise: Noise) -> None:
    """Raise RunStopped where the `engine_metrics` say that the engine has sampled from other weights than the policy's.

    A rounding of its own adds to the `noise` of the policy, so its mean may be a few times as large; a warning comes once.
    """
    mean, largest = metrics["engine/mismatch"], metrics["engine/mismatch_max"]
    times, (warn, stop) = mean / noise.mean, ENGINE_LIMITS[noise.num_bits]
    if times <= warn:
        return
    text = (
        f"iteration {iteration}: the log-probabilities of the engine differ from the policy's by {mean:.3g} nats in the mean and "
        f"{largest:.3g} at most, {times:.1f} times the mean rounding noise that this run measured ({noise.mean:.3g})"
    )
    if not times <= stop:
        raise RunStopped(f"{text}; up to {stop} times are allowed. The engine has other weights, or an older adapter")
    if not noise.warned_of_engine:
        noise.warned_of_engine = True
        logger.warning("%s; the run goes on, and stops above %d times", text, stop)


def watch_kl(controller: AdaptiveKLController, kl: float, iteration: int) -> None:
    """Warn of a KL that starts far away, or that a growing coefficient does not bring down, after 16, 32, 64 ... iterations.

    `kl` is that of `iteration`, which the controller took in last. A coefficient that stays fixed (`kl_rate: 0`) has no target.
    """
    if iteration == 1 and kl > 1.0:
        remedy = "check that ref_model, its tokenizer and the prompts belong together"
        text = "the policy starts %.2f nats per token away from its reference (objective/kl_initial): %s"
        logger.warning(text, kl, remedy)
    num_above = controller.num_above
    is_due = controller.num_below == 0 and num_above >= 16 and num_above & (num_above - 1) == 0
    if is_due and controller.kl_rate and (controller.at_its_bound or controller.growth >= 1.5):
        bound = ", which is its bound kl_coef_max" if controller.at_its_bound else ""
        remedy = "lower lr, or raise rollout_batch_size"
        text = "KL above its target (%g) for %d iterations although the coefficient grew %.1f-fold, now %.3g%s: %s"
        logger.warning(text, controller.kl_target, num_above, controller.growth, controller.kl_coef, bound, remedy)
