"""Settings of the C library and oneDNN for keeping memory, for processes that only train or evaluate."""

import contextlib
import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h
PLANS = "64"  # number of matrix products of different shapes for which oneDNN keeps a plan


def grow_segments() -> None:
    """Let torch's CUDA allocator grow its segments, so that other sizes leave no holes; call it before torch is imported."""
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # its older name
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next tensor, instead of asking the kernel for new, cleared memory.

    Linux with glibc only; call it before the first tensor is created. Environment variables that are set are kept.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, PLANS)
    if sys.platform == "linux" and not any(name.startswith("MALLOC_") for name in os.environ):
        with contextlib.suppress(OSError, AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(M_MMAP_MAX, 0)
            mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
