"""Times and memory of runs on pretended machines; expected values by hand."""

from dataclasses import replace

import pytest
from known_sizes import BILLION
from machines import GIB, GPU, LAPTOP

from rlhf_dialog.distributed import estimates
from rlhf_dialog.distributed.estimates import LIBRARIES, Reference, chat, memory_of, of_model, quickstart


@pytest.fixture(autouse=True)
def _reference(monkeypatch):
    """200 GFLOP/s; an iteration of 30 s with a model of 100 million parameters."""
    reference = Reference(
        "2026-01-01", "a CPU", 2, 200.0, quickstart=100.0, iteration=30.0, parameters=1e8, memory=4 * GIB
    )
    monkeypatch.setattr(estimates, "REFERENCE", reference)


def test_a_machine_with_half_the_speed_takes_twice_as_long():
    row = quickstart(LAPTOP)  # 100 GFLOP/s
    assert (row.fits, row.seconds, row.formula) == (True, 200.0, "100 s x 200 / 100 GFLOP/s")
    row = chat(LAPTOP, 20)
    assert row.seconds == 20 * 30 * 2
    assert row.formula == "20 iterations x 30 s x 200 / 100 GFLOP/s"
    assert (row.bytes_needed, row.bytes_available, row.extras) == (4 * GIB, 12 * GIB, ("peft", "gguf"))


def test_ten_times_the_parameters_take_ten_times_as_long():
    row = of_model("1B", BILLION, 16, replace(LAPTOP, memory_available=100 * GIB))
    assert row.seconds == pytest.approx(30 * 10 * 2)
    assert row.formula == "30 s x 1000M / 100M parameters x 4 / 4 passes x 200 / 100 GFLOP/s"
    row = of_model("1B", BILLION, 0, replace(LAPTOP, memory_available=100 * GIB))
    assert row.seconds == pytest.approx(30 * 10 * 2 * 5 / 4)  # the gradients of the weights are one more pass
    assert row.extras == ()


def test_what_does_not_fit_has_no_time():
    row = of_model(
        "1B", BILLION, 0, LAPTOP
    )  # 12 GiB; weights, gradients, moments and reference alone are 20 bytes each
    assert (row.fits, row.seconds) == (False, None)
    assert row.bytes_needed > 20 * 10**9
    assert row.formula == "memory forecast + 1.00 GiB for the libraries"
    row = chat(replace(LAPTOP, memory_available=4 * GIB - 1), 20)
    assert (row.fits, row.seconds) == (False, None)
    assert chat(replace(LAPTOP, memory_available=4 * GIB), 20).fits


def test_it_fits_from_the_forecast_and_the_libraries_on():
    needed = memory_of(BILLION, 16, LAPTOP).total + LIBRARIES
    assert of_model("1B", BILLION, 16, replace(LAPTOP, memory_available=needed)).fits
    assert not of_model("1B", BILLION, 16, replace(LAPTOP, memory_available=needed - 1)).fits
    assert of_model("1B", BILLION, 16, replace(LAPTOP, memory_available=None)).fits  # nobody knows


def test_a_gpu_computes_in_its_own_memory_with_its_own_speed():
    machine = replace(LAPTOP, memory_available=GIB, gpus=(GPU,))
    row = of_model("1B", BILLION, 0, machine)
    assert (row.fits, row.bytes_available) == (True, 79 * GIB)
    assert row.seconds == pytest.approx(30 * 10 * 5 / 4 * 200 / 400_000)
    assert row.formula.endswith("200 / 400,000 GFLOP/s, at least: a GPU also waits between products")
    assert quickstart(machine).seconds == 200.0  # on the processor
    old = replace(machine, gpus=(replace(GPU, has_bfloat16=False),))
    assert of_model("1B", BILLION, 0, old).seconds == pytest.approx(30 * 10 * 5 / 4 * 200 / 50_000)


def test_the_rows():
    names = [row.what for row in estimates.estimates(LAPTOP, chat_iterations=20)]
    assert names == [
        *("make quickstart", "configs/chat_smollm2.yaml"),
        *("Llama 1B with LoRA", "Llama 8B with LoRA", "Llama 8B, all parameters"),
    ]
    rows = {row.what: row for row in estimates.estimates(LAPTOP, chat_iterations=None)}
    assert "configs/chat_smollm2.yaml" not in rows
    assert rows["Llama 8B, all parameters"].bytes_needed > 20 * 8.03e9


def test_the_sizes_are_those_of_the_published_models():
    """1.24 and 8.03 billion parameters (Llama 3.2 1B, Llama 3.1 8B: model cards)."""
    found = [estimates._sizes(values).parameters for values in (estimates.LLAMA_1B, estimates.LLAMA_8B)]
    assert found == [1_235_814_400, 8_030_261_248]
