"""How many bytes of memory are free for this process, on a GPU and on the machine."""

import re
from collections.abc import Iterator
from pathlib import Path

import torch


def free_on_gpu(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0])


def free_on_host(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """MemAvailable, or the memory left in this process's control groups if less; None where the system does not report it."""
    text = _text(proc / "meminfo")
    available = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    found = [int(available[1]) * 1024] if available else []
    return min(found + list(_cgroup_room(proc, cgroups)), default=None)


def _cgroup_room(proc: Path, root: Path) -> Iterator[int]:
    """The memory left under each limit of this process's control groups, v1 and v2; cached file pages count as free.

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
                yield max(int(limit) - int(usage) + (int(cached[1]) if cached else 0), 0)
            if folder == base:
                break


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
