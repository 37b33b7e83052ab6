"""Switch one thing of a model off while a block runs, to see whether a fault goes with it. Each block restores what it changes.

`rlhf_dialog.training.diagnosis` and `rlhf_dialog.models.try_faults` use them after a check has failed.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.lora import lora_layers, selected
from rlhf_dialog.models.network import NetworkLM, own_network
from rlhf_dialog.models.policy import Policy, packs
from rlhf_dialog.models.precision import HALF

DROPOUTS: set[Any] = {
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
    torch.dropout,
}
UNPACKED = "sdpa"  # the library's own attention


class WithoutDropout(TorchFunctionMode):
    """Inside the block, torch's dropout changes nothing, in training mode too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is functional.scaled_dot_product_attention:
            args, kwargs = args[:4], {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)


class WithoutCasts(TorchFunctionMode):
    """Inside the block, nothing is computed under autocast, and no tensor in 32 bits is cast to 16."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and _narrows(func, args, kwargs):
            return args[0]
        device = next((x.device.type for x in args if isinstance(x, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return func(*args, **kwargs)


def _narrows(func: Any, args: Any, kwargs: Any) -> bool:
    if args[0].dtype in HALF or not args[0].is_floating_point():
        return False
    asked = {x for x in (*args[1:], *kwargs.values()) if isinstance(x, torch.dtype)}
    is_cast = func in (Tensor.to, Tensor.type) and not asked.isdisjoint(HALF)
    return is_cast or func in (Tensor.half, Tensor.bfloat16)


@contextmanager
def unpacked(*policies: Policy) -> Iterator[None]:
    """Inside the block, the policies compute padded rows by the library's own attention."""
    with ExitStack() as stack:
        for policy in policies:
            stack.callback(policy.__dict__.update, has_plain_head=policy.has_plain_head)
        for policy in policies:
            if packs(policy.lm):
                stack.callback(policy.lm.set_attn_implementation, policy.lm.config._attn_implementation)
                policy.lm.set_attn_implementation(UNPACKED)
            policy.__dict__["has_plain_head"] = False  # as in `Policy` for a model that does not pack
        yield


@contextmanager
def with_adapter(adapter: str | None, *lms: nn.Module) -> Iterator[None]:
    """Inside the block, the layers below the models compute with this adapter, None: without one; merged ones are taken out."""
    layers = {id(layer): layer for lm in lms for layer in lora_layers(lm)}.values()
    merged = [layer for layer in layers if layer.merged_adapters]
    with ExitStack() as stack:
        for layer in merged:
            weight, names = layer.get_base_layer().weight, list(layer.merged_adapters)
            stack.callback(setattr, weight, "data", weight.data)
            stack.callback(setattr, layer, "merged_adapters", names)
            weight.data = weight.data.clone()
            layer.unmerge()
        for lm in lms:
            stack.enter_context(selected(lm, adapter))
        yield


@contextmanager
def typed_like(lm: nn.Module, like: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Inside the block, weights and buffers of `lm` are rounded to `dtype`, and have the types of those of `like`."""
    types = {name: x.dtype for name, x in (*like.named_parameters(), *like.named_buffers())}
    with ExitStack() as stack:
        for name, x in (*lm.named_parameters(), *lm.named_buffers()):
            if x.is_floating_point():
                stack.callback(setattr, x, "data", x.data)
                x.data = x.data.to(dtype).to(types.get(name, x.dtype))
        yield


@contextmanager
def shifted(lm: nn.Module, by: int, last: int | None) -> Iterator[None]:
    """Inside the block, the model gets position_ids that are `by` larger, from 0 to `last`, where it is called with them."""

    def shift(_: nn.Module, args: Any, options: dict[str, Any]) -> Any:
        positions = options.get("position_ids")
        if positions is None:
            return None
        return args, {**options, "position_ids": (positions + by).clamp(0, last)}

    called: Any = own_network(lm) if isinstance(lm, NetworkLM) else lm.base_model
    with called.register_forward_pre_hook(shift, with_kwargs=True):
        yield


def in_training_mode(*modules: nn.Module) -> list[str]:
    """The dropouts that are in training mode, by name."""
    found = [named for module in modules for named in module.named_modules()]
    return [name for name, x in found if isinstance(x, nn.modules.dropout._DropoutNd) and x.training and x.p > 0]


@contextmanager
def no_draws(refusal: str) -> Iterator[None]:
    """Raise RunStopped with the `refusal` when the block draws from torch's generators of the CPU or of the GPU."""
    before = _generators()
    yield
    if not all(torch.equal(x, y) for x, y in zip(before, _generators(), strict=True)):
        raise RunStopped(refusal)


def _generators() -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]
