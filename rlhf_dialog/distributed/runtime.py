"""Settings of the libraries below torch: how libgomp's threads wait, and how freed memory is kept. They need no torch."""

import contextlib
import ctypes
import os
import sys
from importlib import metadata

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the newer name, and the older one
PLANS = "64"  # number of matrix products of different shapes for which oneDNN keeps a plan
SPINS = "2000"  # turns of a waiting thread's loop before it sleeps; 300,000 by default, 0 with OMP_WAIT_POLICY=PASSIVE


def spin_briefly() -> None:
    """Let idle threads of torch sleep soon, so that other programs get their cores. Linux; call it before torch is imported.

    libgomp reads the environment once, when torch loads it. A variable that is set is kept.
    """
    if sys.platform == "linux" and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = SPINS


def grow_segments() -> None:
    """Let torch's CUDA allocator grow its segments, so that other sizes leave no holes; call it before torch is imported.

    A variable that is set is kept. torch 2.9 and newer warn of the older name, and those before it read no other.
    """
    if any(name in os.environ for name in ALLOCATOR):
        return
    major, minor = metadata.version("torch").split(".")[:2]
    for name in ALLOCATOR[: 1 if (int(major), int(minor)) >= (2, 9) else 2]:
        os.environ[name] = "expandable_segments:True"


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


def return_freed_memory() -> None:
    """Give the kernel what `keep_freed_memory` has kept, before a part of a run whose tensors have other sizes; glibc."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
