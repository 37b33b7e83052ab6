"""The device of a process: of the GPUs that it sees the first, under a launcher that of its local rank."""

import os

import torch

from rlhf_dialog.distributed.strategy import log_once
from rlhf_dialog.errors import UserError


def count_gpus() -> int:
    """How many CUDA devices this process sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_device(asked: str) -> str:
    """`cpu` or `cuda` for `auto`, `cpu` or `cuda`; see `take_gpu`. Raises UserError for a device that is not there."""
    available = torch.cuda.is_available()
    if asked == "cuda" and not available:
        raise UserError("device: cuda, but torch finds no CUDA device; use auto or cpu")
    if asked == "cpu" or not available:
        return "cpu"
    take_gpu()
    return "cuda"


def take_gpu(local_rank: int = -1) -> torch.device:
    """The GPU that `cuda` means in this process from now on; a line says which. A LOCAL_RANK of the launcher counts first.

    A process that sees fewer GPUs than there are ranks (srun --gpus-per-task=1 shows it one) takes those in turn.
    """
    rank, visible = int(os.environ.get("LOCAL_RANK", local_rank)), torch.cuda.device_count()
    number = max(rank, 0) % visible
    torch.cuda.set_device(number)
    which = "the first" if rank < 0 else f"that of local rank {rank}"
    log_once(f"on cuda:{number}, {which} of {visible} visible GPUs")
    return torch.device("cuda", number)
