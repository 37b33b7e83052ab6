"""Linear layers computed by oneDNN, on processors where torch's own float32 matrix product is slower.

On a CPU, torch multiplies float32 matrices with MKL, which reaches only half the speed of processors not made by Intel; oneDNN,
which torch includes for bfloat16, reaches all of it. The arithmetic is float32 either way (docs/PERFORMANCE.md has the numbers).

M rows, I inputs, O outputs.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.pytorch_utils import Conv1D


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., I) times weight (O, I) transposed, plus bias (O,)."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class OneDNN(torch.autograd.Function):
    """`x @ weight.T + bias` and its derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return multiply(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        to_x = multiply(gradient, weight.t()) if ctx.needs_input_grad[0] else None
        to_weight = multiply(rows.t(), x.reshape(-1, x.shape[-1]).t()) if ctx.needs_input_grad[1] else None
        return to_x, to_weight, rows.sum(dim=0) if ctx.has_bias and ctx.needs_input_grad[2] else None


def fits(x: Tensor) -> bool:
    """Whether oneDNN is used for `x`: float32 on a CPU, not empty, and no autocast that would convert it to bfloat16."""
    is_float32 = x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() > 0
    return is_float32 and not torch.is_autocast_enabled("cpu")


class OneDNNLinear(nn.Linear):
    """nn.Linear by oneDNN."""

    def forward(self, input: Tensor) -> Tensor:
        if fits(input) and self.weight.dtype == torch.float32:
            return OneDNN.apply(input, self.weight, self.bias)  # type: ignore[no-any-return]
        return super().forward(input)


class OneDNNConv1D(Conv1D):
    """GPT-2's linear layer, whose weight is (I, O), by oneDNN."""

    def forward(self, x: Tensor) -> Tensor:
        if fits(x) and self.weight.dtype == torch.float32:
            return OneDNN.apply(x, self.weight.t(), self.bias)  # type: ignore[no-any-return]
        return super().forward(x)


FASTER = {nn.Linear: OneDNNLinear, Conv1D: OneDNNConv1D}


def use_onednn(model: nn.Module, enabled: bool | None = None) -> bool:
    """Let oneDNN compute the linear layers of the model; None: if it is faster here. Returns whether it does."""
    if enabled is None:
        enabled = onednn_is_faster()
    for module in model.modules():
        if enabled and type(module) in FASTER:
            module.__class__ = FASTER[type(module)]
    return enabled


@cache
def onednn_is_faster() -> bool:
    """Whether this is an AMD processor and this torch has the operation."""
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    cpu = Path("/proc/cpuinfo")
    return cpu.is_file() and "AuthenticAMD" in cpu.read_text(encoding="utf-8", errors="replace")
