"""Activation checkpointing: a layer keeps only its input and is computed again in the backward pass (arXiv 1604.06174).

The switch of transformers (`activation_checkpointing_enable`) works only in training mode, but models here are always in eval
mode, because dropout is off; therefore the layers are wrapped here, with all keywords that they are called with.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from rlhf_dialog.errors import UserError
from rlhf_dialog.models.lora import lora_layers, select_adapter, selection


def recompute_layers(trunk: nn.Module) -> None:
    """Make every layer of the trunk recompute itself in the backward pass. Raises UserError when the model has no such layers."""
    layers = [module for module in trunk.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(
            f"activation_checkpointing: {type(trunk).__name__} has no layers that can be recomputed; set it to false"
        )
    for layer in layers:
        layer.forward = partial(_recompute, layer)  # type: ignore[method-assign]


def _recompute(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The layer's own forward under checkpointing; without gradients, just the forward."""
    forward = partial(type(layer).forward, layer)
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if adapted := lora_layers(layer):  # recomputed with the adapter that is selected now
        adapter = selection(adapted[0])
        options["context_fn"] = lambda: (nullcontext(), select_adapter(layer, adapter))
    return checkpoint(forward, *args, **options, **kwargs)
