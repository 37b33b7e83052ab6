"""This machine: its processor, and how many bytes of memory are free for this process, within its control groups."""

import platform
import re
from collections.abc import Iterator
from pathlib import Path


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, set[str]]:
    """The processor's name, and its flags where the system lists them."""
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    name = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.+)$", text, re.MULTILINE)
    title = name[1].strip() if name else platform.processor() or platform.machine()
    return title, set(flags[1].split() if flags else ())


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
    """Each memory limit of this process's control groups, and what is used of it without cached file pages.

    https://docs.kernel.org/admin-guide/cgroup-v2.html. A limit may be set at any level above.
    """
    found = re.search(r"^0::(.*)$", _text(proc / "self" / "cgroup"), re.MULTILINE)
    group = root / (found[1] if found else "").strip("/")
    for folder in (group, *group.parents):
        limit, usage = (_text(folder / name).strip() for name in ("memory.max", "memory.current"))
        if limit.isdigit() and usage.isdigit():
            cached = re.search(r"^inactive_file (\d+)", _text(folder / "memory.stat"), re.MULTILINE)
            yield int(limit), int(usage) - (int(cached[1]) if cached else 0)
        if folder == root:
            break


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
