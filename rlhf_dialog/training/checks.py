"""The checks that every run makes: each raises RunStopped before a fault can spoil an optimizer step."""

import logging
import math

import torch
from torch import Tensor

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.masks import masked, masked_mean
from rlhf_dialog.training.noise import Noise
from rlhf_dialog.training.ppo import AdaptiveKLController
from rlhf_dialog.training.rollout import Rollout, prompt_names

logger = logging.getLogger(__name__)
KEPT_CHECKPOINT = "the last checkpoint is kept"
WARN, STOP = 4, 20  # multiples of the measured noise


def all_finite(numbers: dict[str, float]) -> bool:
    """Whether no value is NaN or inf."""
    return all(map(math.isfinite, numbers.values()))


def check_numbers(rollout: Rollout, iteration: int) -> None:
    """Raise RunStopped when a model predicts NaN or inf: its weights are bad, and skipping steps would not fix them."""
    found = {"policy": rollout.logprobs, "critic": rollout.values, "reference": rollout.ref_logprobs}
    is_bad = torch.stack([(rollout.response_mask & ~tensor.isfinite()).any(dim=1) for tensor in found.values()])
    for model, of_rows in zip(found, is_bad.tolist(), strict=True):
        if bad := [row for row, one in enumerate(of_rows) if one]:
            names = prompt_names([rollout.dialogues[i] for i in bad])
            raise RunStopped(
                f"iteration {iteration}: the {model} gives NaN or inf for {len(bad)} of {len(rollout)} responses "
                f"before any update (prompts: {names}), so its weights are not usable; {KEPT_CHECKPOINT}"
            )


def difference_statistics(difference: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """The largest and the mean size of differences (B, T) of log-probabilities, which are 0 outside of the mask, and the number
    of tokens: three scalars."""
    size = difference.abs()
    return {"largest": size.max(), "mean": masked_mean(size, mask), "tokens": mask.sum().to(size.dtype)}


def check_start(largest: float, mean: float, noise: Noise, tokens: float = math.inf) -> None:
    """Raise RunStopped unless policy and reference are equal but for the `noise`, in a fresh run that starts from its reference.

    Another difference comes from an error in masks, positions or dropout. `largest` and `mean` are those of |log-probability of
    the policy - that of the reference|; the mean is at least |KL|.
    """
    _compare("the policy starts as its own reference, but their log-probabilities differ", largest, mean, noise, tokens)


def check_first_kl(rollout: Rollout, noise: Noise, world: World) -> None:
    """Raise RunStopped unless the policy computes as its reference does, from which it starts."""
    size = masked(rollout.logprobs - rollout.ref_logprobs, rollout.response_mask).abs()
    largest = max(world.gather(size.max().item() if len(size) else 0.0))
    mean = masked_mean(size, rollout.response_mask, world.sum).item()
    check_start(largest, mean, noise, world.sum_numbers([rollout.num_tokens])[0])


def check_ratio(largest: float, mean: float, iteration: int, noise: Noise, tokens: float = math.inf) -> None:
    """Raise RunStopped unless every ratio is 1 before the first optimizer step, by the largest and the mean |log ratio|.

    The `noise` was measured at the run's temperature, which multiplies it. The mean is that of `tokens` tokens.
    """
    if not math.isfinite(largest):  # then the loss is not finite either, and the step is skipped
        return
    text = f"iteration {iteration}: the ratio of new to old probabilities is not 1 on the first minibatch"
    _compare(f"{text}, and sampling and update differ", largest, mean, noise, tokens)


def times_the_noise(largest: float, mean: float, noise: Noise, tokens: float) -> float:
    """How many times the noise a difference is: its largest size, or its mean over `tokens` tokens."""
    return max(largest / noise.largest, mean / (noise.mean + noise.largest / max(tokens, 1.0)))


def _compare(text: str, largest: float, mean: float, noise: Noise, tokens: float) -> None:
    """Warn above WARN times the noise, and raise RunStopped above STOP times; the first warning of a run is the only one.

    One token may have the largest noise, which the mean of a few tokens shows.
    """
    times = times_the_noise(largest, mean, noise, tokens)
    if times <= WARN:
        return
    text = (
        f"{text} by {mean:.3g} nats in the mean and {largest:.3g} at most, {times:.1f} times the rounding noise that this run "
        f"measured ({noise.mean:.3g} and {noise.largest:.3g})"
    )
    if not times <= STOP:
        finer = (
            ". With precision: fp32 the check is finer: if that run passes, report the model"
            if noise.num_bits == 16
            else ""
        )
        raise RunStopped(f"{text}; up to {STOP} times are allowed{finer}.")
    if not noise.warned:
        noise.warned = True
        remedy = ". Run it once with precision: fp32" if noise.num_bits == 16 else ""
        logger.warning("%s; the run goes on, and stops above %d times%s", text, STOP, remedy)


def watch_kl(controller: AdaptiveKLController, kl: float, iteration: int) -> None:
    """Warn of a KL that starts far away, or that a growing coefficient does not bring down to its target.

    `iteration` is the number of the iteration whose `kl` the controller took in last.
    """
    if iteration == 1 and kl > 1.0:
        logger.warning(
            "the policy starts %.2f nats per token away from its reference (objective/kl_initial): check that ref_model, its "
            "tokenizer and the prompts belong together",
            kl,
        )
    num_above, is_new = controller.num_above, controller.num_below == 0
    if not (is_new and num_above >= 16 and num_above & (num_above - 1) == 0):
        return
    if controller.at_its_bound or controller.growth >= 1.5:
        bound = ", which is its bound kl_coef_max" if controller.at_its_bound else ""
        logger.warning(
            "KL above its target (%g) for %d iterations although the coefficient grew %.1f-fold, now %.3g%s: lower lr, or "
            "raise rollout_batch_size",
            controller.kl_target,
            num_above,
            controller.growth,
            controller.kl_coef,
            bound,
        )


def watch_support(mass: float | None, first: float | None, iteration: int) -> float | None:
    """Warn when the reference's probability of the tokens that the filter keeps is below half of its `first` value.

    Returns that value, None as long as there was none.
    """
    if mass is None:
        return first
    first = mass if first is None else first
    if mass < 0.5 * first:
        logger.warning(
            "iteration %d: the reference gives only %.2f of its probability to the tokens that top-k and top-p keep (%.2f at "
            "the start); objective/kl does not show this, see objective/kl_full",
            iteration,
            mass,
            first,
        )
    return first


def report_skipped(
    totals: dict[str, float], dialogues: list[Dialogue], in_the_loss: bool, iteration: int, in_a_row: int, limit: int
) -> None:
    """Warn of an optimizer step that is skipped because a total is not finite. Raises RunStopped at the `limit`-th in a row."""
    bad = ", ".join(f"{name} {value}" for name, value in totals.items() if not math.isfinite(value))
    text = (
        f"iteration {iteration}: a number of the update is not finite ({bad}); prompts of the "
        f"{'microbatch with it' if in_the_loss else 'minibatch'}: {prompt_names(dialogues)}; the optimizer step is skipped"
    )
    if in_a_row >= limit:
        raise RunStopped(f"{text}, {in_a_row} in a row (max_skipped_steps): the run stops; {KEPT_CHECKPOINT}")
    logger.warning("%s, %d in a row", text, in_a_row)
