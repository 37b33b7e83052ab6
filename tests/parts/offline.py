"""No network, and one thread, so that two workers fit two cores. Import it before torch."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import rlhf_dialog  # noqa: F401  before torch

# isort: split
import torch

torch.set_num_threads(1)
# bitsandbytes, which peft imports, would load all of torch._inductor to compile functions that no test calls
torch.compile = lambda *functions, **options: functions[0] if functions else lambda function: function  # type: ignore[assignment]
