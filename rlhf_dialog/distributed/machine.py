"""The processor of this machine."""

import platform
import re
from pathlib import Path


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, set[str]]:
    """The processor's name, and its flags where the system lists them."""
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    name = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.+)$", text, re.MULTILINE)
    title = name[1].strip() if name else platform.processor() or platform.machine()
    return title, set(flags[1].split() if flags else ())
