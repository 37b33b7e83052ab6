"""The precision that a run computes in, and the types of the weights that it does not train.

`precision: auto` is bf16 (autocast) on a GPU that has it, else fp32. Trained weights are float32 in any case.

- **Frozen linear layers keep the checkpoint's 16-bit type** (`narrow`). Autocast would round to the same numbers, so
  not a bit changes. Embeddings and norms stay in float32, as autocast leaves them in the trained policy.
- **TF32** multiplies what stays float32 on a GPU, but where fp32 is asked by name, or under the older `use_amp`.
- **Frozen float32 weights are converted once a rollout** (`converted_once`), the output embedding once a pass (`get_copy`).
"""

import logging
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad
from transformers.pytorch_utils import Conv1D

from rlhf_dialog.config.settings import AsksPrecision
from rlhf_dialog.models.cpu_linear import OneDNNLinear
from rlhf_dialog.models.device import cpu_bfloat16

logger = logging.getLogger(__name__)
Precision = Literal["fp32", "bf16", "fp16"]
HALF = (torch.bfloat16, torch.float16)
TILE = 64  # of rows: a 16-bit product with another number of columns, as with GPT-2's 50,257 tokens, is several times slower


def precision_of(keys: AsksPrecision, device: torch.device) -> Precision:
    """The precision that a run, a stage or a command computes in on `device`."""
    asked = keys.asked_precision
    if asked != "auto":
        return asked
    return "bf16" if device.type == "cuda" and gpu_has_bf16() else "fp32"


def gpu_has_bf16() -> bool:
    """Whether the GPU multiplies in bf16; true where there is no GPU."""
    return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)


def warn_of_slow_bf16(keys: AsksPrecision, device: torch.device) -> None:
    """A warning where bfloat16 would be emulated: on an x86 processor without instructions for it, many times slower."""
    if (
        device.type == "cpu"
        and precision_of(keys, device) == "bf16"
        and platform.machine() == "x86_64"
        and not cpu_bfloat16()
    ):
        what = "precision: bf16, but this processor cannot multiply in bfloat16"
        logger.warning("%s: an iteration may take many times as long; use precision: fp32", what)


def autocast_of(keys: AsksPrecision, device: torch.device) -> dict[str, Any]:
    """`use_amp` and `amp_dtype` of the models of a run."""
    precision = precision_of(keys, device)
    return {"use_amp": precision != "fp32", "amp_dtype": torch.float16 if precision == "fp16" else torch.bfloat16}


def uses_tf32(keys: AsksPrecision, device: torch.device) -> bool:
    """Whether float32 products may be rounded to TF32: on a GPU, unless a key asks for what was there before, or for fp32."""
    return device.type == "cuda" and getattr(keys, "use_amp", None) is None and keys.asked_precision != "fp32"


def set_float32_products(keys: AsksPrecision, device: torch.device) -> None:
    """Let a GPU multiply float32 in TF32, or strictly, in this process; on a CPU nothing is set."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if uses_tf32(keys, device) else "highest")


@contextmanager
def without_tf32() -> Iterator[None]:
    """Inside the block, or in the decorated function, float32 is never rounded to TF32: for numbers that a table prints."""
    products = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(products)


def narrow(model: nn.Module, types: tuple[torch.dtype, ...] = HALF) -> None:
    """Hold the frozen weights of linear layers in the first of `types` that has all their numbers; others stay as they are.

    Weights that an embedding shares stay too. The results under autocast to that type do not change.
    """
    embedded = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)}
    linear = [p for m in model.modules() if isinstance(m, nn.Linear | Conv1D) for p in m.parameters(recurse=False)]
    for parameter in linear:
        wide = parameter.dtype in {torch.float32, *HALF} - {*types}
        if not wide or parameter.requires_grad or id(parameter) in embedded:
            continue
        parameter.data = parameter.data.float()  # one in another type than these
        for dtype in types:
            small = parameter.data.to(dtype)
            if torch.equal(small.float(), parameter.data):
                parameter.data = small
                break


@contextmanager
def converted_once(model: nn.Module) -> Iterator[None]:
    """Inside the block, which has autocast and no gradients, frozen float32 weights are converted at their first use only.

    Autocast keeps a conversion until its outermost block ends, but only of weights that require a gradient.
    """
    frozen = [p for p in model.parameters() if not p.requires_grad and p.dtype == torch.float32]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


# -- the output embedding under autocast: its matrix is converted to 16 bits once a pass, not for every chunk of logits or token


def get_copy(head: nn.Module, dtype: torch.dtype) -> Tensor | None:
    """The matrix (V, H) of the head in `dtype`, without a gradient; on a GPU with rows of 0 up to a multiple of TILE.

    None where it would be the matrix itself, or one in float64.
    """
    if type(head) not in (nn.Linear, OneDNNLinear):
        return None
    weight: Any = head.weight
    lacking = -len(weight) % TILE if weight.is_cuda else 0
    if weight.dtype == torch.float64 or (weight.dtype == dtype and not lacking):
        return None
    copy: Tensor = weight.detach().to(dtype)
    return pad(copy, (0, 0, 0, lacking)) if lacking else copy


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
        # a GPU has added up in float32, and need not round the sum
        is_wide = gradient.is_cuda and ctx.dtype == torch.float32 != gradient.dtype
        if is_wide and "dtype" in torch.ops.aten.mm.overloads():
            to_weight = torch.mm(gradient.t(), x, out_dtype=ctx.dtype)
        else:
            to_weight = (gradient.t() @ x).to(ctx.dtype)
        return to_x, None, to_bias, to_weight[: ctx.rows]
