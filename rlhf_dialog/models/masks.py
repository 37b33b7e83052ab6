"""Operations on masked tensors, for all stages. B episodes, T tokens; a mask is True where a token counts.

Where a function takes `total`, the episodes may be divided among several processes: `total` sums a tensor over all processes,
and the result is that of all episodes together.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Total = Callable[[Tensor], Tensor]


def no_reduce(x: Tensor) -> Tensor:
    """The `total` of a single process: returns `x`."""
    return x


def apply_mask(x: Tensor, mask: Tensor) -> Tensor:
    """`x` where the mask is True, 0 elsewhere."""
    return torch.where(mask, x, torch.zeros_like(x))


def masked_mean(x: Tensor, mask: Tensor, total: Total = no_reduce) -> Tensor:
    """Mean over the True positions, a scalar; 0 when there is none."""
    return total(apply_mask(x, mask).sum()) / total(mask.sum()).clamp(min=1)


def mean(x: Tensor, total: Total = no_reduce) -> Tensor:
    """Mean of all elements, a scalar."""
    return masked_mean(x, torch.ones_like(x, dtype=torch.bool), total)


def last_token(mask: Tensor) -> Tensor:
    """The position of the last True of each row of `mask` (B, T), -1 where there is none: (B,)."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    return torch.where(mask, positions, -1).amax(dim=1)


def last_run_lengths(mask: Tensor) -> Tensor:
    """The length of the last unbroken run of True in each row of `mask` (B, T), 0 where there is none: (B,)."""
    last = last_token(mask).unsqueeze(1)
    positions = torch.arange(mask.shape[1], device=mask.device)
    return last.squeeze(1) - last_token(~mask & (positions < last))


def as_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of attention, of the shape of `mask` (..., L): 0 where it is True, -inf elsewhere.

    Its rows begin at multiples of 16, else a kernel of a GPU would copy it, in each layer.
    """
    width = mask.shape[-1]
    bias = mask.new_zeros((*mask.shape[:-1], width + -width % 16), dtype=dtype)[..., :width]
    return bias.masked_fill_(~mask, -torch.inf)


def position_ids_of(mask: Tensor) -> Tensor:
    """Positions counted over True tokens only: 0, 0, 0, 1, 2 for a prompt with two pads on the left. Same shape as `mask`."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)
