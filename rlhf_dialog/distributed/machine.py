"""What a machine can do, measured in a few seconds: matrix products, memory, GPUs, instructions, disk. All sizes are bytes."""

import os
import platform
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlhf_dialog.distributed.memory.free_memory import free_on_host, limit_on_host, total_on_host
from rlhf_dialog.models import cpu_linear
from rlhf_dialog.models.precision import emulates_bf16

SECONDS, GPU_SECONDS = 2.0, 0.25  # of each kind of product: so long on the processor and on a GPU
CALLS = 5  # at least
ON_CPU, ON_GPU = (256, 1024, 1024), (4096, 4096, 4096)  # rows, inputs, outputs
EXTENSIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")  # flags of /proc/cpuinfo that matter for products


@dataclass(frozen=True)
class Gpu:
    """A CUDA device. float32, bfloat16: GFLOP/s of products."""

    name: str
    total: int
    free: int
    float32: float
    bfloat16: float
    has_bfloat16: bool


@dataclass(frozen=True)
class Machine:
    """What was measured. float32, bfloat16: GFLOP/s of the processor; None where the system does not report a size."""

    processor: str
    cores: int
    threads: int  # of torch
    capability: str  # what torch uses: AVX2, AVX512 ...
    extensions: tuple[str, ...]
    float32: float
    bfloat16: float
    emulates_bfloat16: bool
    load: float | None  # average of the last minute before the measurement
    memory_total: int | None
    memory_available: int | None  # within the control group
    memory_limit: int | None  # of the control group
    gpus: tuple[Gpu, ...]
    folder: str
    disk_free: int

    @property
    def gpu(self) -> Gpu | None:
        """The GPU that a run of one process uses."""
        return self.gpus[0] if self.gpus else None


def measure(folder: Path) -> Machine:
    """Measure this machine, and the disk of `folder`, in a few seconds: two kinds of products, on the processor and each GPU."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    cpu = torch.device("cpu")
    name, flags = processor()
    return Machine(
        processor=name,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        capability=torch.backends.cpu.get_cpu_capability(),
        extensions=tuple(flag for flag in EXTENSIONS if flag in flags),
        float32=products(cpu, torch.float32),
        bfloat16=products(cpu, torch.bfloat16),
        emulates_bfloat16=emulates_bf16(cpu),
        load=load,
        memory_total=total_on_host(),
        memory_available=free_on_host(),
        memory_limit=limit_on_host(),
        gpus=tuple(map(_gpu, range(torch.cuda.device_count() if torch.cuda.is_available() else 0))),
        folder=str(folder.absolute()),
        disk_free=shutil.disk_usage(folder).free,
    )


def products(device: torch.device, dtype: torch.dtype) -> float:
    """GFLOP/s of a linear layer, the best of its calls, with the faster of the libraries that torch has for it."""
    rows, inputs, outputs = ON_GPU if device.type == "cuda" else ON_CPU
    x, weight = (torch.randn(count, inputs, device=device).to(dtype) for count in (rows, outputs))
    ways: list[Callable[[], Any]] = [lambda: nn.functional.linear(x, weight)]
    if cpu_linear.fits(x) and cpu_linear.onednn_is_faster():
        ways = [lambda: cpu_linear.multiply(x, weight, None)]
    return 2 * rows * inputs * outputs / 1e9 / min(best_seconds(way, device) for way in ways)


def best_seconds(call: Callable[[], Any], device: torch.device) -> float:
    """The shortest of CALLS calls or more, for about SECONDS or GPU_SECONDS, after one that is not counted."""
    seconds = GPU_SECONDS if device.type == "cuda" else SECONDS
    _run(call, device)
    start, calls, best = time.perf_counter(), 0, float("inf")
    while calls < CALLS or time.perf_counter() - start < seconds:
        best, calls = min(best, _run(call, device)), calls + 1
    return best


def _run(call: Callable[[], Any], device: torch.device) -> float:
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _gpu(number: int) -> Gpu:
    device = torch.device("cuda", number)
    free, total = torch.cuda.mem_get_info(device)
    return Gpu(
        name=torch.cuda.get_device_name(device),
        total=total,
        free=free,
        float32=products(device, torch.float32),
        bfloat16=products(device, torch.bfloat16),
        has_bfloat16=torch.cuda.is_bf16_supported(including_emulation=False),
    )


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, set[str]]:
    """The processor's name, and its flags where the system lists them."""
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    name = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.+)$", text, re.MULTILINE)
    title = name[1].strip() if name else platform.processor() or platform.machine()
    return title, set(flags[1].split() if flags else ())
