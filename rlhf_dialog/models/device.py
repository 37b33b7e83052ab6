"""The device of a process: of the GPUs that it sees the first, under a launcher that of its local rank."""

import os
from pathlib import Path

import torch

from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError
from rlhf_dialog.terminal import log_once


def choose_device(asked: str, key: str = "device: ") -> str:
    """The device for `auto`, `cpu`, `cuda` or `cuda:1`. Raises UserError, with the `key` that asks, for one that is not there."""
    leave_out_cudnn_attention()
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked.startswith("cuda") and int(asked[5:] or 0) >= num_gpus:
        there = f"{num_gpus or 'no'} CUDA device{'s' if num_gpus > 1 else ''}"
        raise UserError(f"{key}{asked}, but torch finds {there}; use auto or cpu")
    if asked in ("auto", "cuda") and num_gpus:
        take_gpu()
        return "cuda"
    return "cpu" if asked == "auto" else asked


def pick_device(config: Config) -> torch.device:
    """The device that `device` and `disable_cuda` choose for a run. Raises UserError when CUDA is not there but asked for."""
    leave_out_cudnn_attention()
    available = torch.cuda.is_available() and not config.disable_cuda
    if config.device == "cuda" and not available:
        why = "disable_cuda: true hides them" if config.disable_cuda else "torch finds no CUDA device here"
        raise UserError(f"device: cuda, but {why}; use device: auto or device: cpu")
    return torch.device("cuda" if available and config.device != "cpu" else "cpu")


def cpu_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The instructions by which the processor multiplies bfloat16, `amx` or the slower `avx512_bf16`; empty without them."""
    flags = cpuinfo.read_text(encoding="utf-8", errors="replace").split() if cpuinfo.is_file() else []
    return "amx" if "amx_bf16" in flags else "avx512_bf16" if "avx512_bf16" in flags else ""


def leave_out_cudnn_attention() -> None:
    """Let torch choose other kernels of attention: cuDNN's makes a plan for each shape, and decoding has a new one per token."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def take_gpu(local_rank: int = -1) -> torch.device:
    """The GPU that `cuda` means from now on, of the visible ones that of LOCAL_RANK, in turn; a line says which."""
    rank, visible = int(os.environ.get("LOCAL_RANK", local_rank)), torch.cuda.device_count()
    number = max(rank, 0) % visible
    torch.cuda.set_device(number)
    which = "the first" if rank < 0 else f"that of local rank {rank}"
    log_once(f"on cuda:{number}, {which} of {visible} visible GPUs")
    return torch.device("cuda", number)
