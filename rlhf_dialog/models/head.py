"""The output embedding under autocast: its matrix is converted to 16 bits once a pass, not for every chunk of logits or token.

K positions, H hidden width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad

from rlhf_dialog.models.cpu_linear import OneDNNLinear

T = TypeVar("T")
TILE = 64  # of rows: a 16-bit product with another number of columns, as with GPT-2's 50,257 tokens, is several times slower


def has_copy(head: nn.Module, dtype: torch.dtype) -> bool:
    """Whether autocast to `dtype` would convert the matrix of the head, or it lacks rows, and all of it is here.

    Parts of ZeRO 3 or FSDP2, which they gather in the module's own forward, are left to autocast.
    """
    if type(head) not in (nn.Linear, OneDNNLinear) or is_part(head):
        return False
    weight: Any = head.weight
    return weight.dtype != torch.float64 and (weight.dtype != dtype or lacking_rows(weight) > 0)


def lacking_rows(weight: Tensor) -> int:
    """How many rows a matrix on a GPU lacks to a multiple of TILE."""
    return -len(weight) % TILE if weight.is_cuda else 0


def is_part(module: nn.Module) -> bool:
    """Whether this process holds a part of the module's weights, which ZeRO 3 or FSDP2 gathers when the module is called."""
    return any(hasattr(p, "ds_id") or hasattr(p, "device_mesh") for p in module.parameters())


def in_one_call(module: nn.Module, compute: Callable[[Tensor], T], x: Tensor) -> T:
    """`compute(x)` as the forward of one call of the module, in which it can use the module's own `forward` any number of times.

    The weights are gathered once for the call, and once more in the backward pass, by hooks in which every process waits for the
    others. The number of products may then differ from process to process.
    """
    before = vars(module).get("forward")
    module.forward = compute  # type: ignore[method-assign]
    try:
        return module(x)  # type: ignore[no-any-return]
    finally:
        del module.forward
        if before is not None:
            module.forward = before  # type: ignore[method-assign]


def get_copy(head: nn.Module, dtype: torch.dtype) -> Tensor:
    """The matrix (V, H) of the head in `dtype`, without a gradient; on a GPU with rows of 0 up to a multiple of TILE."""
    weight: Any = head.weight
    copy: Tensor = weight.detach().to(dtype)
    return pad(copy, (0, 0, 0, lacking)) if (lacking := lacking_rows(copy)) else copy


def multiply(head: nn.Linear, copy: Tensor, x: Tensor) -> Tensor:
    """The logits (K, V) of x (K, H) by the copy; the gradient reaches the weight itself."""
    x = x.to(copy.dtype)
    size = len(head.weight)
    bias = None if head.bias is None else pad(head.bias.to(copy.dtype), (0, len(copy) - size))
    if torch.is_grad_enabled() and head.weight.requires_grad:
        logits = Product.apply(x, copy, bias, head.weight)
    else:
        logits = linear(x, copy, bias)
    return logits if len(copy) == size else logits[:, :size]


class Product(torch.autograd.Function):
    """`x @ copy.T + bias`, whose gradient of the copy is that of `weight` (fewer rows on a GPU), in the type of the weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, copy: Tensor, bias: Tensor | None, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, copy)
        ctx.dtype, ctx.rows = weight.dtype, len(weight)
        return linear(x, copy, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, copy = ctx.saved_tensors
        to_x = gradient @ copy if ctx.needs_input_grad[0] else None
        to_bias = gradient.sum(dim=0) if ctx.needs_input_grad[2] else None
        return to_x, None, to_bias, multiply_wide(gradient.t(), x, ctx.dtype)[: ctx.rows]


def multiply_wide(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """`a @ b` in `dtype`; a GPU that has added up in float32 does not round 16-bit factors' product."""
    if a.is_cuda and dtype == torch.float32 != a.dtype and "dtype" in torch.ops.aten.mm.overloads():
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)
