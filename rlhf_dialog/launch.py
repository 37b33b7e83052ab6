"""Where a run runs: its device, its random seeds, and how many processes there are."""

import logging
import os
import random

import numpy as np
import torch

from rlhf_dialog.errors import UserError
from rlhf_dialog.schema import Config

logger = logging.getLogger(__name__)


def rank() -> int:
    """The number of this process among those that a launcher started; 0 alone."""
    return int(os.environ.get("RANK", "0"))


def check_processes(config: Config) -> None:
    """Raises UserError for several processes or DeepSpeed: two ranks would draw the same prompts unseen."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        raise UserError(
            f"{world_size} processes were started, but this version trains with one; "
            "start it with python, or with --num_processes 1"
        )
    if config.use_deepspeed:
        raise UserError(
            "use_deepspeed: true, but this version trains with one process and no engine; set use_deepspeed: false"
        )


def pick_device(config: Config) -> torch.device:
    """The device of `device` and `disable_cuda`. Raises UserError when CUDA is asked for where there is none."""
    available = torch.cuda.is_available()
    if config.device == "cuda" and config.disable_cuda:
        raise UserError("device: cuda, but disable_cuda: true; keep one of them")
    if config.device == "cuda" and not available:
        raise UserError("device: cuda, but torch finds no CUDA device here; use device: auto or device: cpu")
    return torch.device("cuda" if available and config.device != "cpu" and not config.disable_cuda else "cpu")


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def set_threads(config: Config) -> None:
    if config.pytorch_threads:
        torch.set_num_threads(config.pytorch_threads)
