"""What a model must show when it is loaded: that packed rows, or rows padded on the left, have the predictions of each row alone.

Differences are in nats, and compared with what rounding explains (`rounding`).
"""

import logging
import math

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf_dialog.errors import UserError
from rlhf_dialog.models import network
from rlhf_dialog.models.decoding import PackedDecoder, PaddedDecoder
from rlhf_dialog.models.packing import ATTENTION, can_pack
from rlhf_dialog.models.policy import Policy, packs
from rlhf_dialog.models.rounding import (
    NUM_ROWS,
    Alone,
    in_batch,
    largest,
    left_padded_logprobs,
    limit_of,
    logprobs,
    probe_ids,
)
from rlhf_dialog.models.sizes import num_embeddings, num_positions
from rlhf_dialog.models.switches import shifted
from rlhf_dialog.models.try_faults import padding_fault, positions_fault, try_fault

logger = logging.getLogger(__name__)
STEPS = 2  # tokens that come one by one


def predicted_on_texts(lm: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> Alone:
    """What the model predicts of texts of its tokenizer; without one, of ids that are drawn."""
    return Alone(lm, probe_ids(tokenizer, num_embeddings(lm), num_positions(lm)))


def use_packing(lm: PreTrainedModel, alone: Alone) -> bool:
    """Let the model compute packed rows if its predictions are then those of each row alone; returns whether it does."""
    if not can_pack(lm) or lm.get_output_embeddings() is None:
        return False
    usual = lm.config._attn_implementation
    lm.set_attn_implementation(ATTENTION)
    try:
        difference = packing_error(lm, alone)
    except (TypeError, ValueError, RuntimeError, NotImplementedError, AttributeError, KeyError, IndexError) as error:
        logger.debug("%s cannot compute packed rows: %r", type(lm).__name__, error)
        difference = math.inf
    lm.set_attn_implementation(usual)  # by which the yardstick is computed
    if alone.explains(difference):
        lm.set_attn_implementation(ATTENTION)
    else:
        logger.info(
            "%s does not support packed rows (predictions differ by %.2g nats, rounding explains %.2g), so padding is computed "
            "too: a run takes up to twice as long",
            type(lm).__name__,
            difference,
            alone.limit,
        )
    return packs(lm)


@torch.no_grad()
def packing_error(lm: PreTrainedModel, alone: Alone) -> float:
    """The largest difference in nats between the predictions of packed rows and of each row alone, of all at once and one by
    one."""
    policy = Policy(lm)
    all_at_once = alone.difference(logprobs(policy, alone.ids, padded=False))
    ids, mask = in_batch(beginnings(alone), side="left")
    decoder = PackedDecoder(policy, ids, mask, num_new=STEPS, prompts_at_once=len(ids))
    return max(all_at_once, decoding_error(decoder, policy, alone))


def beginnings(alone: Alone) -> list[torch.Tensor]:
    """The first tokens of each row, of different numbers, as prompts."""
    return [row[: min(len(row) - STEPS, 12 + 2 * (number % NUM_ROWS))] for number, row in enumerate(alone.ids)]


def decoding_error(decoder: PackedDecoder | PaddedDecoder, policy: Policy, alone: Alone) -> float:
    """The largest difference in nats of the STEPS tokens that follow each beginning, when they come one by one."""
    starts = [len(prompt) for prompt in beginnings(alone)]
    newest = torch.stack([row[at : at + STEPS] for row, at in zip(alone.ids, starts, strict=True)])
    wanted = torch.stack([row[at - 1 : at - 1 + STEPS] for row, at in zip(alone.logprobs, starts, strict=True)])
    predicted = []
    for step in range(STEPS):
        predicted.append(policy.predict(decoder.features, newest[:, step], 1.0, None, with_entropy=False)[0])
        decoder.step(newest[:, step])
    return largest(torch.stack(predicted, dim=1), wanted)


@torch.no_grad()
def check_left_padding(lm: PreTrainedModel, alone: Alone, path: str, key: str) -> None:
    """Raises UserError when padding on the left, or the tokens that follow, change the predictions of the model."""
    name = type(network.own_network(lm)).__name__
    is_own = network.spec_of(lm) is not None
    difference = alone.difference(left_padded_logprobs(alone.policy, alone.ids))
    limit = limit_of(alone.together, difference)
    if not alone.shorter <= limit:
        by = f"by {alone.shorter:.2g} nats (rounding explains {limit:.2g})"
        cause = try_fault(lm, alone, lambda fresh: fresh.shorter <= limit_of(fresh.together))
        raise UserError(
            f"{key}: '{path}' ({name}) changes its predictions {by} when its last tokens are cut off. {cause}"
            if cause
            else f"{key}: '{path}' ({name}) looks at the tokens that follow, which change its predictions {by}, so it is not a "
            "causal LM"
        )
    if is_own:
        network.check_right_padding(lm, alone.together, limit_of(alone.shorter, difference), key)
    limit = alone.limit
    if not difference <= limit:
        by = f"by {difference:.2g} nats when a prompt is padded on the left (rounding explains {limit:.2g})"
        cause = try_fault(
            lm, alone, lambda fresh: fresh.difference(left_padded_logprobs(fresh.policy, fresh.ids)) <= fresh.limit
        )
        raise UserError(
            f"{key}: '{path}' ({name}) changes its predictions {by}, so batches of prompts would be wrong. "
            f"{cause or padding_fault(alone, is_own)}"
        )
    one_by_one = decoding_error(padded_decoder(alone), alone.policy, alone)
    if not one_by_one <= limit:
        by = f"by {one_by_one:.2g} nats when tokens come one by one (rounding explains {limit:.2g})"
        conclusion = f"do not hold what it has read; {network.CONTRACT}" if is_own else "cannot be used"
        cause = try_fault(
            lm, alone, lambda fresh: decoding_error(padded_decoder(fresh), fresh.policy, fresh) <= fresh.limit
        )
        raise UserError(
            f"{key}: the predictions of {name} differ {by}"
            f"{f'. {found}' if (found := cause or _shift(lm, alone)) else f'; its past_key_values {conclusion}'}"
        )


def padded_decoder(alone: Alone) -> PaddedDecoder:
    """The decoder of a model that does not pack, after the beginning of each row."""
    ids, mask = in_batch(beginnings(alone), side="left")
    return PaddedDecoder(alone.policy, ids, mask)


def _shift(lm: PreTrainedModel, alone: Alone) -> str:
    """`Cause. Remedy.` where other positions explain what tokens that come one by one change; else empty."""
    last = num_positions(lm)
    for by in (-1, 1):
        decoder = padded_decoder(alone)
        with shifted(lm, by, last and last - 1):
            if decoding_error(decoder, alone.policy, alone) <= alone.limit:
                return positions_fault(by)
    return ""
