"""Why a model fails a try when it is loaded: the causes one by one, each with one thing switched off, and their remedies."""

from collections.abc import Callable

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf_dialog.models.rounding import Alone, largest, left_padded_logprobs, limit_of
from rlhf_dialog.models.switches import WithoutCasts, WithoutDropout

REMEDIES = {
    "dropout": "Call eval() on the model, and let what draws random numbers act only where self.training is true",
    "dtype": "Let precision in the YAML set the type of both, and take casts and autocast out of the model",
    "positions": "Let the model use the position_ids that it gets, in every call",
    "attention mask": "Let the model use the attention_mask that it gets, and hide no token by its id",
    "packing": "Let the model mix no tokens but by its attention, or set packing: false",
}


@torch.no_grad()
def try_fault(lm: PreTrainedModel, alone: Alone, passes: Callable[[Alone], bool]) -> str:
    """`Cause. Remedy` of a failed try, which `passes` makes again for each; empty if none explains it."""

    def helps(switch: WithoutDropout | WithoutCasts) -> bool:
        with switch:
            return passes(Alone(lm, alone.ids))

    again = Alone(lm, alone.ids)
    if not alone.difference(torch.cat(again.logprobs)) <= limit_of(0.0):
        why = "dropout that acts in eval mode" if helps(WithoutDropout()) else "not by torch's dropout"
        return f"The model draws random numbers ({why}). {REMEDIES['dropout']}"
    if helps(WithoutCasts()):
        return f"The model computes in 16 bits in part, and passes in 32 bits. {REMEDIES['dtype']}"
    special = special_ids(lm)
    other = next(int(i) for i in torch.cat(alone.ids) if int(i) not in special)
    for token in sorted(special):
        if passes(Alone(lm, [row.masked_fill(row == token, other) for row in alone.ids])):
            return f"The model hides the pad or end token (id {token}) where it is part of a text. {REMEDIES['attention mask']}"
    return ""


def special_ids(lm: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> set[int]:
    """The pad and end tokens that the model, its generation configuration or a tokenizer names."""
    ids: set[int] = set()
    for holder in (lm.config, getattr(lm, "generation_config", None), tokenizer):
        for name in ("pad_token_id", "eos_token_id"):
            named = getattr(holder, name, None)
            ids.update(i for i in (named if isinstance(named, list) else [named]) if i is not None)
    return ids


def padding_fault(alone: Alone, is_own: bool) -> str:
    """`Cause. Remedy` of a model whose predictions padding on the left changes; `is_own`: a network of the user's."""
    first, second = (left_padded_logprobs(alone.policy, alone.ids, pad_id) for pad_id in (0, 1))
    if not largest(first, second) <= limit_of(0.0):
        remedy = "Skip the tokens whose attention_mask is 0" if is_own else REMEDIES["attention mask"]
        return f"The model sees the tokens that pad a prompt. {remedy}"
    remedy = "Let forward take position_ids" if is_own else "Use a model that takes position_ids"
    return f"The model does not see the padding, but counts its positions. {remedy}"


def positions_fault(by: int) -> str:
    """`Cause. Remedy` of a model that passes when the positions of tokens that come one by one change `by` this."""
    return (
        f"Positions are one too {'large' if by < 0 else 'small'} where tokens come one by one. {REMEDIES['positions']}"
    )
