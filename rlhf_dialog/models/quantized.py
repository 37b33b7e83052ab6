"""A frozen base in 4 bits (QLoRA): linear layers of bitsandbytes, which transformers makes while it loads a model.

arXiv 2305.14314: nf4, with the scales of its blocks in 8 bits. The output embedding and all that is no linear layer stay as they
are.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from rlhf_dialog.errors import check_installed

# which says that it lacks the package `kernels`, wherever peft imports it
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def loading_options(device: torch.device) -> dict[str, Any]:
    """Options of `from_pretrained` that quantize while it loads. Raises UserError without bitsandbytes."""
    check_installed("bitsandbytes", "load_in_4bit")
    with without_kernels():
        import bitsandbytes  # noqa: F401
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    return {"quantization_config": config, "device_map": {"": str(device)}}


@contextmanager
def without_kernels() -> Iterator[None]:
    """Inside the block, the package `kernels` cannot be imported: bitsandbytes would run a program from the Hub with it."""
    modules: dict[str, Any] = sys.modules
    imported = modules.get("kernels")
    modules["kernels"] = None
    try:
        yield
    finally:
        del modules["kernels"]
        if imported is not None:
            modules["kernels"] = imported


def settle(lm: PreTrainedModel) -> None:
    """Make the quantized model one that trains, merges and is saved as any other of its class."""
    from bitsandbytes import matmul_4bit

    for layer in quantized_layers(lm).values():
        # else the first prediction repacks the weights on some processors, and from then on no gradient passes
        layer.support_avx512bf16_for_cpu = False
        layer.forward = partial(_forward, layer, matmul_4bit)
    lm.hf_quantizer.remove_quantization_config(lm)  # type: ignore[union-attr, operator]


def _forward(layer: Any, matmul: Callable[..., Tensor], x: Tensor) -> Tensor:
    """The product in the type of autocast, else that of x; the layer's own keeps one type, and rounds its bias to it for good."""
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    bias = None if layer.bias is None else layer.bias.to(dtype)
    return matmul(x.to(dtype), layer.weight, bias=bias, quant_state=layer.weight.quant_state)


def quantized_layers(lm: nn.Module) -> dict[str, Any]:
    """The layers in 4 bits, by the names that their weights had before adapters were added."""
    layers = {}
    for name, layer in lm.named_modules():
        if hasattr(layer._parameters.get("weight"), "quant_state"):
            layers[f"{name.removesuffix('.base_layer')}.weight"] = layer
    return layers


def dequantized(layer: Any, change: Tensor | float = 0) -> Tensor:
    """The numbers (out, in) that a layer in 4 bits multiplies with, plus a change; for GPT-2's layer (in, out)."""
    from bitsandbytes.functional import dequantize_4bit

    weight = dequantize_4bit(layer.weight.data, layer.weight.quant_state).float() + change
    return weight.t().contiguous() if layer.source_cls is Conv1D else weight
