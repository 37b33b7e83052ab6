"""How many bytes of memory are there and free for this process, on a GPU and on the machine."""

import re
from collections.abc import Iterator
from pathlib import Path

import torch


def free_on_gpu(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0])


def free_on_host(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """MemAvailable, or the memory left in this process's control groups if less; None where the system does not report it."""
    available = _meminfo(proc, "MemAvailable")
    room = [max(limit - used, 0) for limit, used in _cgroups(proc, cgroups)]
    return min(room if available is None else [available, *room], default=None)


def total_on_host(proc: Path = Path("/proc")) -> int | None:
    """MemTotal: the memory of the machine; None where the system does not report it."""
    return _meminfo(proc, "MemTotal")


def limit_on_host(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The lowest memory limit of this process's control groups; None without one below the memory of the machine."""
    total = total_on_host(proc)
    limits = [limit for limit, _ in _cgroups(proc, cgroups) if total is None or limit < total]
    return min(limits, default=None)


def _meminfo(proc: Path, name: str) -> int | None:
    line = re.search(rf"^{name}:\s+(\d+) kB", _text(proc / "meminfo"), re.MULTILINE)
    return int(line[1]) * 1024 if line else None


def _cgroups(proc: Path, root: Path) -> Iterator[tuple[int, int]]:
    """Each memory limit of this process's control groups, v1 and v2, and what is used of it without cached file pages.

    https://docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/memory.html. A limit may be set at any level above.
    """
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        v1 = controllers == "memory"
        base = root / "memory" if v1 else root
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if v1 else ("memory.max", "memory.current")
        group = base / path.strip("/")
        for folder in (group, *group.parents):
            limit, usage = (_text(folder / name).strip() for name in names)
            if limit.isdigit() and usage.isdigit():
                cached = re.search(r"^(?:total_)?inactive_file (\d+)", _text(folder / "memory.stat"), re.MULTILINE)
                yield int(limit), int(usage) - (int(cached[1]) if cached else 0)
            if folder == base:
                break


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
