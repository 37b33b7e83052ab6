"""The machine in the results of scripts/benchmark.py: speed of matrix products and copies, memory, load."""

import os
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

import rlhf_dialog

ROOT = Path(rlhf_dialog.__file__).resolve().parents[1]
GIB = 2**30
RATES = {"fp32": "fp32_gflops", "bf16": "bf16_gflops"}


def program(name: str) -> list[str]:
    """The command that runs a module of this folder; processes of this one find the checkout from then on."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(ROOT) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, paths)])
    return [sys.executable, "-P", "-m", f"benchmarks.{name}"]


def calibrate(device: torch.device, seconds: float = 0.5) -> dict[str, float]:
    """GFLOP/s of a square matrix product in fp32 and bf16, and GB/s of a copy (read + written), each for about `seconds`."""
    rows, copied = (8192, 4 * GIB) if device.type == "cuda" else (2048, GIB // 16)
    if emulates_bf16(device):
        rows = 512  # a product of 2048 rows would take half a minute
    found = {}
    for dtype, name in ((torch.float32, RATES["fp32"]), (torch.bfloat16, RATES["bf16"])):
        a, b, out = (torch.randn(rows, rows, device=device).to(dtype) for _ in range(3))
        found[name] = 2 * rows**3 / 1e9 * _calls_per_second(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), seconds)
    source, target = torch.ones(2, copied // 4, device=device)
    found["copy_gb_per_s"] = 2 * copied / 1e9 * _calls_per_second(lambda: target.copy_(source), seconds)
    return found


def _calls_per_second(call: Any, seconds: float) -> float:
    call()
    wait()
    start, count, spent = time.perf_counter(), 0, 0.0
    while spent < seconds:
        call()
        wait()
        count, spent = count + 1, time.perf_counter() - start
    return count / spent


def emulates_bf16(device: torch.device) -> bool:
    """Whether `device` is a processor without instructions for bfloat16 products, or one whose environment turns them off."""
    if device.type != "cpu":
        return False
    on_x86 = torch.cpu._is_avx2_supported()
    has_instructions = not on_x86 or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return not (has_instructions and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def wait() -> None:
    """Until the GPU has done its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def has_fast_bf16(device: torch.device) -> bool:
    """Whether the processor has instructions for bfloat16 products."""
    return not emulates_bf16(device)


def peak_gib() -> float:
    """The largest resident memory of this process so far. `ru_maxrss` would also count the process that started it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / GIB
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def load() -> list[float]:
    """The load average of the last 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def machine(device: torch.device) -> dict[str, Any]:
    """Processor, threads, memory, GPU."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_field("model name") or platform.processor(),
        "cores": _cores(),
        "threads": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "memory_gib": round(memory / GIB, 1),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "system": platform.platform(),
    }


def _cpu_lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def _cpu_field(name: str) -> str:
    return next((line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith(name)), "")


def _cores() -> int | None:
    """Physical cores: distinct pairs of socket and core in /proc/cpuinfo; None if it does not list them."""
    found = [line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith(("physical id", "core id"))]
    return len(set(zip(found[::2], found[1::2], strict=False))) or None
