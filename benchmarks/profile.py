"""What scripts/benchmark.py measures beside the speed: the forecast of the memory, and a profile of one iteration."""

from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForSequenceClassification

from benchmarks import workload
from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.memory import model_sizes, needed_bytes, read_sizes
from rlhf_dialog.training.trainer import PPOTrainer

TABLE, TRACE = "profile.txt", "trace.json.gz"
NUM_ROWS = 25


def forecast_gib(config: Config, size: str | None, device: torch.device) -> float | None:
    """The forecast of the device's memory at the peak, without libraries; None when the policy's sizes cannot be read.

    W's classifier, of this size, has no folder that a forecast could read, so its sizes come from its configuration.
    """
    policy = read_sizes(config.model_path)
    if policy is None:
        return None
    judges = [model_sizes(workload.classifier_config(size), AutoModelForSequenceClassification)] if size else []
    return needed_bytes(config, policy, judges=judges, on_cuda=device.type == "cuda") / 2**30


def profiled(trainer: PPOTrainer, folder: Path) -> list[dict[str, Any]]:
    """Profile one more iteration; writes a table of operations and a Chrome trace into `folder`.

    Returns the operations that take the most time on the device: name, calls, milliseconds, share of the time of all.
    """
    on_cuda = trainer.models.policy.lm.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with profile(activities=activities) as found:
        trainer.step()
        if on_cuda:
            torch.cuda.synchronize()
    key = "self_device_time_total" if on_cuda else "self_cpu_time_total"
    events = found.key_averages()
    (folder / TABLE).write_text(events.table(sort_by=key, row_limit=NUM_ROWS), encoding="utf-8")
    found.export_chrome_trace(str(folder / TRACE))
    return top_operations(events, key)


def top_operations(events: Any, key: str) -> list[dict[str, Any]]:
    """The operations of a profile in the order of the microseconds that the attribute `key` holds, the longest first.

    Kernels are left out: their time is also that of the operation that started them.
    """
    events = [event for event in events if event.device_type == DeviceType.CPU]
    whole = sum(getattr(event, key) for event in events)
    longest = sorted(events, key=lambda event: getattr(event, key), reverse=True)[:NUM_ROWS]
    return [
        {"name": event.key, "calls": event.count, "ms": getattr(event, key) / 1e3, "share": getattr(event, key) / whole}
        for event in longest
        if getattr(event, key) > 0
    ]
