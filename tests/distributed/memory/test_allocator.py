"""Freed memory of the C library, seen in the kernel's count of page faults; the variable by which CUDA's segments grow."""

import os
import sys
from importlib import metadata

import pytest

from rlhf_dialog.distributed.memory.allocator import grow_segments
from tests.parts.processes import environment, output_of

slow = pytest.mark.slow
PROGRAM = """
import resource
import torch
from rlhf_dialog.distributed.memory.allocator import keep_freed_memory
def use():
    torch.ones(16_000_000)  # 64 MB
def page_faults():
    for _ in range(20):
        use()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        use()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(page_faults())
keep_freed_memory()
print(page_faults())
"""


def page_faults(**changes):
    """Of a child process, before it keeps freed memory and after."""
    removed = {name: None for name in os.environ if name.startswith("MALLOC_")}
    before, after = output_of("-c", PROGRAM, env=environment(**{**removed, **changes})).split()
    return int(before), int(after)


@slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_freed_memory_is_used_again():
    before, after = page_faults()
    assert before > 10_000  # 10 x 64 MB in pages of 4 KiB are 156,250; huge pages make it fewer
    assert after < 1000


@slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_the_environment_wins():
    assert page_faults(MALLOC_ARENA_MAX="2")[1] > 10_000


@pytest.mark.parametrize(
    ("version", "given", "wanted"),
    [
        ("2.6.0+cu124", {}, {"PYTORCH_ALLOC_CONF": "grow", "PYTORCH_CUDA_ALLOC_CONF": "grow"}),
        ("2.8.1", {}, {"PYTORCH_ALLOC_CONF": "grow", "PYTORCH_CUDA_ALLOC_CONF": "grow"}),
        ("2.9.0", {}, {"PYTORCH_ALLOC_CONF": "grow"}),
        ("2.13.0a0+git12", {}, {"PYTORCH_ALLOC_CONF": "grow"}),
        ("2.8.1", {"PYTORCH_CUDA_ALLOC_CONF": "mine"}, {"PYTORCH_CUDA_ALLOC_CONF": "mine"}),
        ("2.13.0", {"PYTORCH_ALLOC_CONF": "mine"}, {"PYTORCH_ALLOC_CONF": "mine"}),
    ],
)
def test_segments_grow_by_the_variable_that_this_torch_reads(monkeypatch, version, given, wanted):
    """torch 2.9 renamed it; a variable that is set is kept."""
    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.setattr(metadata, "version", {"torch": version}.get)
    grow_segments()
    assert os.environ == {name: value.replace("grow", "expandable_segments:True") for name, value in wanted.items()}
