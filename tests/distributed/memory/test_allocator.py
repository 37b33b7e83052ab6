"""What the C library does with memory that was freed, seen from outside: by the kernel's count of page faults."""

import os
import sys

import pytest

from tests.parts.processes import environment, output_of

pytestmark = pytest.mark.thorough
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


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_freed_memory_is_used_again():
    before, after = page_faults()
    assert before > 10_000  # 10 x 64 MB in pages of 4 KiB are 156,250; huge pages make it fewer
    assert after < 1000


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_the_environment_wins():
    assert page_faults(MALLOC_ARENA_MAX="2")[1] > 10_000
