"""The causes of a failed identity check, each with the test that recognises it, and its remedy, in the order of the tests.

A test repeats the comparison with one thing switched off or corrected. It returns a sentence when the difference then falls to
the noise, else None.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_dialog.models import try_faults
from rlhf_dialog.models.lora import lora_layers
from rlhf_dialog.models.policy import Policy, packs
from rlhf_dialog.models.precision import HALF
from rlhf_dialog.models.switches import (
    WithoutCasts,
    WithoutDropout,
    in_training_mode,
    shifted,
    typed_like,
    unpacked,
    with_adapter,
)
from rlhf_dialog.training.comparison import Comparison

FILTERED = -1e4  # a logit below the largest by more than this is that of a token that was taken out


@dataclass(frozen=True)
class Cause:
    """`explain` returns a sentence about the cause when it explains the difference, else None."""

    name: str
    explain: Callable[[Comparison], str | None]
    remedy: str


def dropout(sides: Comparison) -> str | None:
    again = sides.logprobs(sides.written()), sides.logprobs(sides.read())
    before = tuple(sides.logprobs(x) for x in sides.now)
    if all(sides.equal(x, y) for x, y in zip(again, before, strict=True)):
        return None
    with WithoutDropout():
        is_torchs = sides.agree()
    if not is_torchs:
        return "A model draws random numbers: the same tokens get other log-probabilities each time"
    if names := in_training_mode(sides.policy, sides.other):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f"Dropout is on: {names[0]}{more} in training mode; without dropout the difference is gone"
    return "Dropout is on although the model is in eval mode; without dropout the difference is gone"


def adapters(sides: Comparison) -> str | None:
    lms = [sides.policy.lm] if sides.other.lm is sides.policy.lm else [sides.policy.lm, sides.other.lm]
    if not any(lora_layers(lm) for lm in lms):
        return None
    if sides.is_back:
        with with_adapter(None, *lms):
            return (
                "An adapter acts on one side only; without adapters the difference is gone" if sides.agree() else None
            )
    for adapter in (sides.policy.adapter, None):
        with with_adapter(adapter, *lms):
            if sides.equal(sides.recorded, sides.logprobs(sides.read())):
                how = "without an adapter" if adapter is None else f"with the adapter '{adapter}'"
                return f"The responses were sampled {how}, and the model has another one selected since"
    return None


def filters(sides: Comparison) -> str | None:
    written, read = sides.now
    if sides.is_back:
        return _filter_in_model(sides, written, read)
    if sides.equal(sides.recorded, sides.sampled(written)):
        return f"Sampling applies {_added(sides)}, which the log-probabilities of the other side do not have"
    return None


def _added(sides: Comparison) -> str:
    """What sampling does to the logits that the update does not."""
    sampling, is_known = sides.sampling, sides.batch.support is not None
    added = {
        f"temperature {sampling.temperature:g} in place of {sides.temperature:g}": (
            sampling.temperature != sides.temperature
        ),
        f"top_k {sampling.top_k}": sampling.top_k > 0 and not is_known,
        f"top_p {sampling.top_p:g}": sampling.top_p < 1 and not is_known,
        f"min_new_tokens {sampling.min_new_tokens}": sampling.min_new_tokens > 0,
        "a bias": sampling.bias is not None,
    }
    return " and ".join(name for name, is_added in added.items() if is_added) or "a filter of its own"


def _filter_in_model(sides: Comparison, written: Tensor, read: Tensor) -> str | None:
    """Whether the logits (K, V) of the two sides are the same but for tokens that one takes out, or for a temperature."""
    kept = [x > x.amax(dim=-1, keepdim=True) + FILTERED for x in (written, read)]
    both = kept[0] & kept[1]
    if not both.any(dim=-1).all():
        return None
    num_out = int((kept[0] ^ kept[1]).sum(dim=-1).max())
    first, second = (_centered(x, both) for x in (written, read))
    of_each = (first * second).sum(dim=-1) / (second * second).sum(dim=-1)
    targets = sides.batch.packed.targets
    ours, theirs, scaled = (_log_softmax(x, both, targets) for x in (first, second, second * of_each.unsqueeze(1)))
    if num_out and sides.equal(ours, theirs):
        return f"The model takes up to {num_out} tokens out of its logits on one side only (a filter such as top-k)"
    if sides.equal(ours, scaled):
        furthest = of_each[(of_each.log().abs()).argmax()].item()
        return f"The model's logits are divided by {1 / furthest:.3g} on one side only (a temperature)"
    return None


def _centered(logits: Tensor, kept: Tensor) -> Tensor:
    """The logits (K, V) less their mean over the kept tokens, 0 elsewhere."""
    mean = logits.masked_fill(~kept, 0.0).sum(dim=-1, keepdim=True) / kept.sum(dim=-1, keepdim=True)
    return (logits - mean).masked_fill(~kept, 0.0)


def _log_softmax(logits: Tensor, kept: Tensor, targets: Tensor) -> Tensor:
    whole = logits.masked_fill(~kept, -torch.inf).log_softmax(dim=-1)
    return whole.gather(1, targets.unsqueeze(1)).squeeze(1)


def dtype(sides: Comparison) -> str | None:
    if not sides.is_back:
        return None
    for one, like, name in (
        (sides.policy, sides.other, "reference"),
        (sides.other, sides.policy, "policy"),
    ):
        if like.lm is one.lm:
            break
        for to in HALF:
            with typed_like(one.lm, like.lm, to):
                if sides.equal(sides.logprobs(sides.read(of=sides.policy)), sides.logprobs(sides.read())):
                    return (
                        f"The weights of the {name} are rounded to {str(to).removeprefix('torch.')}, the others are not"
                    )
    with WithoutCasts():
        is_gone = sides.agree()
    return "One side computes in 16 bits (a cast, or autocast); in 32 bits the difference is gone" if is_gone else None


def positions(sides: Comparison) -> str | None:
    if not sides.is_back:
        return None

    def shift(policy: Policy, by: int) -> AbstractContextManager[None]:
        return shifted(policy.lm, by, sides.last_position)

    if sides.agree(steps=shift(sides.policy, -1)):
        return "Positions are one too large where tokens come one by one"
    if sides.agree(steps=shift(sides.policy, 1)):
        return "Positions of the response are one too large where all tokens are read at once"
    if sides.agree(writing=shift(sides.policy, 1)) or sides.agree(reading=shift(sides.other, 1)):
        return "One side counts positions one higher than the other"
    if _padding(sides) == "counted":
        return "Positions depend on the padding on the left; each row alone, the difference is gone"
    return None


def masks(sides: Comparison) -> str | None:
    if not sides.is_back:
        return None
    read = sides.batch.packed.ids.unique().tolist()
    special = try_faults.special_ids(sides.policy.lm, sides.stop.tokenizer)
    other = next((i for i in read if i not in special), 0)
    for token in sorted(special & set(read)):
        if sides.agree(sides.batch.with_ids(token, other)):
            return (
                f"One side hides a pad or end token (id {token}) that is part of the text; with another token in its place the "
                "difference is gone"
            )
    if _padding(sides) == "seen":
        return "One side sees the padding of the prompts; each row alone, the difference is gone"
    return None


def _padding(sides: Comparison) -> str | None:
    """How padding explains the difference, where rows are padded: it is `seen`, or only `counted`."""
    if packs(sides.policy.lm):
        return None
    rows = [sides.batch.row(i) for i in range(len(sides.batch.mask))]
    if not all(sides.agree(row) for row in rows):
        return None
    other = sides.batch.padded_with(int(sides.batch.packed.ids[0]))
    changed = sides.logprobs(sides.written(other)), sides.logprobs(sides.read(other))
    before = tuple(sides.logprobs(x) for x in sides.now)
    is_same = all(sides.equal(x, y) for x, y in zip(changed, before, strict=True))
    return "counted" if is_same else "seen"


def packing(sides: Comparison) -> str | None:
    if not sides.is_back or not (packs(sides.policy.lm) or packs(sides.other.lm)):
        return None
    with unpacked(sides.policy, sides.other):
        is_gone = sides.agree()
    return (
        "Rows that are packed into one sequence change each other; padded, the difference is gone" if is_gone else None
    )


CAUSES = (
    Cause("dropout", dropout, try_faults.REMEDIES["dropout"]),
    Cause(
        "adapters",
        adapters,
        "Start the policy's adapter with B = 0, keep the reference without adapters, and select the same adapter again after "
        "code of yours that disables it",
    ),
    Cause(
        "filters",
        filters,
        "Set temperature, top_k and top_p in the YAML alone, where sampling and update both read them, and take other filters "
        "out of the model",
    ),
    Cause("dtype", dtype, try_faults.REMEDIES["dtype"]),
    Cause("positions", positions, try_faults.REMEDIES["positions"]),
    Cause("attention mask", masks, try_faults.REMEDIES["attention mask"]),
    Cause("packing", packing, try_faults.REMEDIES["packing"]),
)


def explanations(sides: Comparison) -> Iterator[tuple[Cause, str | None, str | None]]:
    """Each cause with its sentence, if it explains the difference, and with the error of a test that could not be made."""
    for cause in CAUSES:
        try:
            yield cause, cause.explain(sides), None
        except Exception as error:  # the run ends in any case, with what the check has found
            yield cause, None, f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
