"""Every test runs offline and with one thread, so that two workers fit two cores."""

import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import rlhf_dialog  # noqa: F401  before torch

# isort: split
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background; the tests send SIGINT to themselves
    signal.signal(signal.SIGINT, signal.default_int_handler)
