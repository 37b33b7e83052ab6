"""Activation checkpointing: a layer keeps only its input and is computed again on the way back (arXiv 1604.06174).

transformers has a switch for it (`activation_checkpointing_enable`) that works only in training mode, and models here are always
in eval mode, because dropout is off; so the layers are wrapped by us, with whatever keywords they are called with.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from rlhf_dialog.errors import UserError
from rlhf_dialog.models.lora import lora_layers, selected, selection


def recompute_layers(trunk: nn.Module) -> None:
    """Let every layer of the trunk be computed again on the way back. Raises UserError when the model has no such layers."""
    layers = [module for module in trunk.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(f"activation_checkpointing: {type(trunk).__name__} has no layers that can be computed again")
    for layer in layers:
        layer.forward = partial(_recomputed, layer)  # type: ignore[method-assign]


def _recomputed(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The layer's own forward; without gradients, nothing is kept and nothing is computed twice."""
    forward = partial(type(layer).forward, layer)
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if adapted := lora_layers(layer):
        options["context_fn"] = partial(_contexts, layer, selection(adapted[0]))
    return checkpoint(forward, *args, **options, **kwargs)


def _contexts(
    layer: nn.Module, adapter: str | None
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """On the way back the layer has the adapter of its way forward, whichever is selected by then."""
    return nullcontext(), selected(layer, adapter)
