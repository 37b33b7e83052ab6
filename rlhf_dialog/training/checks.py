"""What every run checks of itself: each function raises RunStopped, before any step that the fault would spoil."""

import logging
import math

from torch import Tensor

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.masks import masked_mean
from rlhf_dialog.training.rollout import Rollout, prompt_names

logger = logging.getLogger(__name__)
STANDS = "the last checkpoint stands"


def all_finite(numbers: dict[str, float]) -> bool:
    """Whether no value is NaN or inf."""
    return all(map(math.isfinite, numbers.values()))


def check_numbers(rollout: Rollout, iteration: int) -> None:
    """Weights that are no numbers show here, and no skipped step would mend them."""
    found = {"policy": rollout.logprobs, "critic": rollout.values, "reference": rollout.ref_logprobs}
    for model, tensor in found.items():
        bad = (rollout.response_mask & ~tensor.isfinite()).any(dim=1).nonzero().flatten().tolist()
        if bad:
            names = prompt_names([rollout.dialogues[i] for i in bad])
            raise RunStopped(
                f"iteration {iteration}: the {model} gives NaN or inf for {len(bad)} of {len(rollout)} responses "
                f"before any update (prompts: {names}); its weights have gone bad; {STANDS}"
            )


def check_start(kl: float, use_amp: bool) -> None:
    """A fresh run that starts from its own reference has KL 0; anything else is a fault of masks, positions or dropout."""
    tolerance = 1e-3 if use_amp else 1e-5
    if not abs(kl) < tolerance:
        raise RunStopped(
            f"the policy starts as its own reference, yet their KL is {kl:.3g} nats per token (allowed: {tolerance:g}); "
            "the two do not compute the same log-probabilities"
        )


def check_ratio(log_ratio: Tensor, mask: Tensor, iteration: int, use_amp: bool) -> None:
    """Before the first optimizer step the policy is the one that sampled: every ratio is 1. Log ratios (B, T), 0 off the mask."""
    if not log_ratio.isfinite().all():  # which makes the loss so too
        return
    largest, mean = log_ratio.abs().max().item(), masked_mean(log_ratio.abs(), mask).item()
    fine = (mean < 1e-2 and largest < 0.3) if use_amp else largest < 1e-4
    if not fine:
        raise RunStopped(
            f"iteration {iteration}: the ratio of new to old probabilities is not 1 on the first minibatch (largest "
            f"|log ratio| {largest:.3g}, mean {mean:.3g}); sampling and update do not compute the same log-probabilities"
        )


def tell_skipped(
    totals: dict[str, float], dialogues: list[Dialogue], in_the_loss: bool, iteration: int, in_a_row: int, limit: int
) -> None:
    """Name an optimizer step that was not made, because a total is not finite. Raises RunStopped at the `limit`-th in a row."""
    bad = ", ".join(f"{name} {value}" for name, value in totals.items() if not math.isfinite(value))
    text = (
        f"iteration {iteration}: a number of the update is not finite ({bad}); prompts of the "
        f"{'microbatch with it' if in_the_loss else 'minibatch'}: {prompt_names(dialogues)}; the optimizer step is skipped"
    )
    if in_a_row >= limit:
        raise RunStopped(f"{text}, {in_a_row} in a row (max_skipped_steps): the run stops; {STANDS}")
    logger.warning("%s, %d in a row", text, in_a_row)
