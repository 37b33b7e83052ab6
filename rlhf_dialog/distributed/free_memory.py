"""How many bytes of memory are free for this process, of how many, within its control groups."""

import re
from collections.abc import Iterator
from pathlib import Path


def host_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> tuple[int | None, int | None]:
    """The free and the total memory of the machine, or of this process's control groups where these have less.

    None where the system does not report it.
    """
    meminfo, found = _text(proc / "meminfo"), list(_cgroups(proc, cgroups))
    sizes = dict(re.findall(r"^(MemAvailable|MemTotal):\s+(\d+) kB", meminfo, re.MULTILINE))
    free = [1024 * int(sizes["MemAvailable"])] if "MemAvailable" in sizes else []
    total = [1024 * int(sizes["MemTotal"])] if "MemTotal" in sizes else []
    free += [max(limit - used, 0) for limit, used in found]
    return min(free, default=None), min([*total, *(limit for limit, _ in found)], default=None)


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
