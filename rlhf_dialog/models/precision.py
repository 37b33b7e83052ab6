"""The precision that a run computes in, and the types of the weights that it does not train.

`precision: auto` is bf16 (autocast) on a GPU that has it, else fp32. Trained weights are float32 in any case.

- **Frozen linear layers keep the checkpoint's 16-bit type on a GPU** (`narrow`): those of the reference, of LoRA's base and of
  a classifier. Autocast would round to the same numbers, so not a bit changes. Embeddings and norms stay in float32, as
  autocast leaves them in the trained policy. A checkpoint in float32 stays float32.
- **TF32** multiplies what stays float32 on a GPU, but where fp32 is asked by name, or under the older `use_amp`.
- **Frozen float32 weights are converted once a rollout** (`converted_once`), not once a token.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from rlhf_dialog.config.settings import AsksPrecision
from rlhf_dialog.errors import UserError

Precision = Literal["fp32", "bf16", "fp16"]
HALF = (torch.bfloat16, torch.float16)


def precision_of(keys: AsksPrecision, device: torch.device) -> Precision:
    """The precision that a run, a stage or a command computes in on `device`."""
    asked = keys.asked_precision
    if asked != "auto":
        return asked
    return "bf16" if device.type == "cuda" and gpu_has_bf16() else "fp32"


def gpu_has_bf16() -> bool:
    """Whether the GPU multiplies in bf16; true where there is no GPU, as in a memory forecast for one."""
    return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)


def autocast_of(keys: AsksPrecision, device: torch.device) -> dict[str, Any]:
    """`use_amp` and `amp_dtype` of the models of a run. Raises UserError when this torch has no such autocast for the device."""
    precision = precision_of(keys, device)
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    if precision != "fp32":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autocast(device.type, dtype):
                works = torch.is_autocast_enabled(device.type)
        if not works:
            key = "precision" if getattr(keys, "use_amp", None) is None else "amp_dtype"
            raise UserError(f"{key}: this torch does not support {precision} on {device.type}; use precision: fp32")
    return {"use_amp": precision != "fp32", "amp_dtype": dtype}


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
