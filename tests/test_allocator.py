"""What the C library does with memory that was freed, seen from outside: by the kernel's count of page faults."""

import os
import sys

import pytest
from processes import environment, output_of

PROGRAM = """
import resource, sys
import torch
if sys.argv[1] == "keep":
    from rlhf_dialog.allocator import keep_freed_memory
    keep_freed_memory()
def use():
    torch.ones(16_000_000)  # 64 MB
for _ in range(20):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(word, **changes):
    removed = {name: None for name in os.environ if name.startswith("MALLOC_")}
    return int(output_of("-c", PROGRAM, word, env=environment(**{**removed, **changes})))


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_freed_memory_is_used_again():
    assert page_faults("leave") > 10_000  # 10 x 64 MB in pages of 4 KiB are 156,250; huge pages make it fewer
    assert page_faults("keep") < 1000


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_the_environment_wins():
    assert page_faults("keep", MALLOC_ARENA_MAX="2") > 10_000
