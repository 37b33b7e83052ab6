"""Copies between the host and a GPU, with as few waits as there can be; on a CPU they return what they are given."""

from collections.abc import Sequence

import torch
from torch import Tensor


def send(x: Tensor, device: torch.device) -> Tensor:
    """The CPU tensor `x` on the device; the host does not wait for the device, which may be busy.

    Torch would copy columns of a wider tensor through memory that is not pinned, and wait.
    """
    if device.type != "cuda":
        return x.to(device)
    return x.contiguous().pin_memory().to(device, non_blocking=True)


def send_all(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """As `send`, for one-dimensional tensors of one dtype, in one copy."""
    if device.type != "cuda":
        return [x.to(device) for x in tensors]
    return list(send(torch.cat(list(tensors)), device).split([len(x) for x in tensors]))


def fetch(*tensors: Tensor) -> list[Tensor]:
    """The tensors on the CPU, all after one wait."""
    found = [x.to("cpu", non_blocking=x.device.type == "cuda") for x in tensors]
    for device in {x.device for x in tensors if x.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()
    return found
