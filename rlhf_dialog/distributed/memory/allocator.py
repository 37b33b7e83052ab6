"""How the C library and oneDNN keep memory, for processes that do nothing but train or evaluate."""

import contextlib
import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h
PLANS = "64"  # matrix products of different shapes whose plans oneDNN keeps


def keep_freed_memory() -> None:
    """Let the C library keep what is freed for the next tensor, instead of having the kernel clear new memory for it.

    Linux with glibc only; call it before the first tensor. What the environment says already stays.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, PLANS)
    if sys.platform == "linux" and not any(name.startswith("MALLOC_") for name in os.environ):
        with contextlib.suppress(OSError, AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(M_MMAP_MAX, 0)
            mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
