"""The devices on which a test must hold: always the CPU, and `cuda` under the mark `gpu`."""

import pytest
import torch

CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
    ],
)
LONG_CPU = pytest.param("cpu", marks=pytest.mark.slow)


@pytest.fixture(params=["cpu", CUDA])
def device(request):
    return torch.device(request.param)


@pytest.fixture
def deterministic(monkeypatch):
    """Kernels that add in one order, as bit for bit on a GPU needs; the CPU has no others."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)
