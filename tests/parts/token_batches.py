"""Token batches and what models say of them."""

from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.models.generation import GenerationLimits, Responder, Responses
from rlhf_dialog.models.token_batch import TokenBatch


def masks_of(*rows: str) -> Tensor:
    """A mask by hand, such as `masks_of("011", "001")`."""
    return torch.tensor([[letter == "1" for letter in row] for row in rows])


def prompts_of(ids: Tensor, mask: Tensor, pad_id: int = 0, groups: Tensor | None = None) -> TokenBatch:
    """Prompts (B, P) without responses."""
    return TokenBatch(ids, mask, ids[:, :0], mask[:, :0], groups, pad_id=pad_id)


def respond_to(
    policy: Any, ids: Tensor, mask: Tensor, sampling: Any, stop: Any, pad_id: int, groups: Any = None, **limits: Any
) -> Responses:
    """Responses to prompts (B, P); the limits by name."""
    responder = Responder(policy, None, sampling, stop, GenerationLimits(**limits))  # type: ignore[arg-type]
    return responder.generate(prompts_of(ids, mask, pad_id, groups))


def columns_of(responses: Responses) -> dict[str, Tensor | None]:
    """All tensors of responses by name."""
    tokens, columns = responses.tokens, dict(vars(responses))
    del columns["tokens"], columns["sampled_logprobs"]  # of an engine
    return columns | {"ids": tokens.response_ids, "mask": tokens.response_mask, "support": tokens.support}


def critic_values(critic: Any, tokens: TokenBatch) -> Tensor:
    """The values (B, T) of a separate critic."""
    packed = tokens.pack()
    return packed.scatter(critic(packed))
