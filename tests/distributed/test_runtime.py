"""How long waiting threads spin, by libgomp's own account; freed memory, by the kernel's page faults; CUDA's segments."""

import os
import re
import sys
from importlib import metadata

import pytest

from rlhf_dialog.distributed.runtime import grow_segments
from tests.parts.processes import environment, output_of, run_python

slow = pytest.mark.slow
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="glibc and libgomp")
PROGRAM = """
import resource
import torch
from rlhf_dialog.distributed.runtime import keep_freed_memory
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
@needs_linux
def test_freed_memory_is_used_again():
    before, after = page_faults()
    assert before > 10_000  # 10 x 64 MB in pages of 4 KiB are 156,250; huge pages make it fewer
    assert after < 1000
    assert page_faults(MALLOC_ARENA_MAX="2")[1] > 10_000  # a variable that is set is kept


RETURNS = """
import os
import torch
from rlhf_dialog.distributed.runtime import keep_freed_memory, return_freed_memory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20
keep_freed_memory()
kept = [torch.ones(2**20) for _ in range(100)][::2]  # 4 MiB each, and every other one is freed
print(resident())
return_freed_memory()
print(resident())
"""


@slow
@needs_linux
def test_freed_memory_goes_back_to_the_kernel():
    before, after = map(int, output_of("-c", RETURNS, env=environment()).split())
    assert before - after > 150


@pytest.mark.parametrize(
    ("version", "given", "wanted"),
    [
        ("2.6.0+cu124", {}, {"PYTORCH_ALLOC_CONF": "grow", "PYTORCH_CUDA_ALLOC_CONF": "grow"}),
        ("2.9.0", {}, {"PYTORCH_ALLOC_CONF": "grow"}),
        ("2.13.0a0+git12", {}, {"PYTORCH_ALLOC_CONF": "grow"}),
        ("2.8.1", {"PYTORCH_CUDA_ALLOC_CONF": "mine"}, {"PYTORCH_CUDA_ALLOC_CONF": "mine"}),
    ],
)
def test_segments_grow_by_the_variable_that_this_torch_reads(monkeypatch, version, given, wanted):
    """torch 2.9 renamed it; a variable that is set is kept."""
    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.setattr(metadata, "version", {"torch": version}.get)
    grow_segments()
    assert os.environ == {name: value.replace("grow", "expandable_segments:True") for name, value in wanted.items()}


@slow
@needs_linux
@pytest.mark.parametrize(
    ("given", "spins"), [({}, "2000"), ({"GOMP_SPINCOUNT": "777"}, "777"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")]
)
def test_threads_spin_briefly_unless_the_user_says_otherwise(given, spins):
    asked = {"OMP_DISPLAY_ENV": "verbose", "OMP_WAIT_POLICY": None, "GOMP_SPINCOUNT": None, **given}
    ran = run_python("-c", "import rlhf_dialog, torch", env=environment(**asked))
    assert re.findall(r"GOMP_SPINCOUNT = '(\d+)'", ran.stderr)[-1] == spins
