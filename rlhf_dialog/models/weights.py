"""What a checkpoint holds of a module: all of it, or with LoRA only what is trained, its adapter and its head; never merged."""

from pathlib import Path

import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn

from rlhf_dialog.models.lora import OF_ADAPTER, trained


def save_module(module: nn.Module, path: Path) -> None:
    """Write a safetensors file."""
    if getattr(module, "adapter", None) is None:
        save_model(module, str(path))
    else:
        save_file({name: p.detach().contiguous() for name, p in trained(module).items()}, path)


def load_module(
    module: nn.Module, path: Path, device: torch.device, strict: bool = True
) -> tuple[list[str], list[str]]:
    """Take the numbers of the file; returns the names that it lacks and those that it has too many of.

    Raises RuntimeError or ValueError when they differ in shape or, if it is `strict`, in any name.
    """
    if getattr(module, "adapter", None) is None:
        missing, unexpected = load_model(module, str(path), strict=strict, device=str(device))
        return sorted(missing), sorted(unexpected)
    saved, own = load_file(path, device=str(device)), trained(module)
    if not any(OF_ADAPTER.search(name) for name in saved):
        raise ValueError(
            "it holds a whole model, and this run (use_lora) trains adapters; start from its agent/ instead"
        )
    missing, unexpected = sorted(set(own) - set(saved)), sorted(set(saved) - set(own))
    if strict and (missing or unexpected):
        raise ValueError(f"other adapters: {', '.join([*missing, *unexpected][:3])}")
    for name in sorted(set(own) & set(saved)):
        if own[name].shape != saved[name].shape:
            raise ValueError(f"{name} is {tuple(saved[name].shape)}, here {tuple(own[name].shape)}")
        own[name].data.copy_(saved[name])
    return missing, unexpected
