"""What fits on pretended machines; expected values by hand."""

from dataclasses import replace

from rlhf_dialog.distributed.memory.common_runs import (
    LLAMA_1B,
    LLAMA_8B,
    CommonRun,
    common_runs,
    forecast_bytes,
    llama_sizes,
)
from tests.parts.known_sizes import BILLION
from tests.parts.machines import GIB, GPU, LAPTOP


def test_a_run_fits_where_its_bytes_are_available():
    assert CommonRun("run", 4 * GIB, 4 * GIB).fits
    assert not CommonRun("run", 4 * GIB, 4 * GIB - 1).fits
    assert CommonRun("run", 4 * GIB, None).fits  # the system does not report it


def test_the_forecast_has_weights_gradients_moments_reference_and_libraries():
    assert forecast_bytes(BILLION, 0, LAPTOP) > 20 * 10**9 + GIB
    assert forecast_bytes(BILLION, 16, LAPTOP) < forecast_bytes(BILLION, 0, LAPTOP)


def test_a_gpu_computes_in_its_own_memory():
    rows = common_runs(replace(LAPTOP, memory_available=GIB, gpus=(GPU,)))
    assert {row.bytes_available for row in rows} == {79 * GIB}
    assert {row.what: row.fits for row in common_runs(LAPTOP)}["Llama 8B, all parameters"] is False


def test_the_sizes_are_those_of_the_published_models():
    """1.24 and 8.03 billion parameters (Llama 3.2 1B, Llama 3.1 8B: model cards)."""
    parameters = [llama_sizes(values).parameters for values in (LLAMA_1B, LLAMA_8B)]
    assert parameters == [1_235_814_400, 8_030_261_248]
