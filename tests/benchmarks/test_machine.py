"""What the machine says of itself."""

from pathlib import Path

import torch

from benchmarks import machine


def test_the_memory_is_what_the_system_says():
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kib = int(next(line.split()[1] for line in lines if line.startswith("MemTotal:")))
    assert abs(machine.machine(torch.device("cpu"))["memory_gib"] - kib / 2**20) <= 0.05001
