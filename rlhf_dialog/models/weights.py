"""The weights of a module in a checkpoint: all, or with LoRA only the trained ones (adapter and head), never merged."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn

from rlhf_dialog.models.lora import OF_ADAPTER, trainable_parameters

MOMENTS = {"step", "exp_avg", "exp_avg_sq"}  # of Adam


def save_module(module: nn.Module, path: Path) -> None:
    """Write the weights of the module into a safetensors file."""
    if getattr(module, "adapter", None) is None:
        save_model(module, str(path))
    else:
        save_file({name: p.detach().contiguous() for name, p in trainable_parameters(module).items()}, path)


def load_module(
    module: nn.Module, path: Path, device: torch.device, strict: bool = True
) -> tuple[list[str], list[str]]:
    """Load the weights of the file; returns the names that the file lacks and the names that the module does not have.

    Raises RuntimeError or ValueError when shapes differ or, if `strict`, when any name differs.
    """
    if getattr(module, "adapter", None) is None:
        missing, unexpected = load_model(module, str(path), strict=strict, device=str(device))
        return sorted(missing), sorted(unexpected)
    saved, own = load_file(path, device=str(device)), trainable_parameters(module).keys()
    if not any(OF_ADAPTER.search(name) for name in saved):
        raise ValueError("the file holds a whole model, but this run (use_lora) trains adapters; start from its agent/")
    missing, unexpected = sorted(own - saved.keys()), sorted(saved.keys() - own)
    if strict and (missing or unexpected):
        raise ValueError(f"the adapters differ from those of this run: {', '.join([*missing, *unexpected][:3])}")
    module.load_state_dict({name: x for name, x in saved.items() if name in own}, strict=False)
    return missing, unexpected


def check_moments(optimizer: torch.optim.Optimizer, slots: Mapping[int, Mapping[str, Tensor]]) -> None:
    """Raises ValueError for moments that are not those of the parameters of Adam: torch would write beyond smaller ones."""
    parameters = [x for group in optimizer.param_groups for x in group["params"]]
    for number, moments in slots.items():
        if number not in range(len(parameters)) or {*moments} != MOMENTS:
            raise ValueError(f"the optimizer's parameter {number} has {sorted(moments)}, not {sorted(MOMENTS)}")
        for name, x in moments.items():
            shape = () if name == "step" else tuple(parameters[number].shape)
            if tuple(x.shape) != shape or not x.is_floating_point() or not x.isfinite().all():
                raise ValueError(f"the optimizer's {number}.{name} has {x.dtype} {tuple(x.shape)}, or NaN, not {shape}")
