"""Parts that are done again in smaller ones: when, and that nothing is left of the first try."""

import logging
import weakref

import pytest
import torch

from rlhf_dialog.models.part_sizes import FULL, ONE_ROW, PartSizes, describe_full_gpu, lacks_memory
from tests.parts.full_gpu import MESSAGE, no_collection  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_collection")


def fit(sizes, phase, asked, compute, fixed=False):
    """What `compute` returns at the size that fits."""
    for attempt in sizes.tries(phase, asked, fixed):
        with attempt:
            result = compute(attempt.rows)
    return result


@pytest.mark.parametrize(("most", "tries"), [(16, [16]), (3, [16, 8, 4, 2])])
def test_a_part_is_halved_until_it_fits(most, tries, caplog):
    caplog.set_level(logging.INFO)
    sizes, tried = PartSizes(), []

    def compute(rows):
        tried.append(rows)
        if rows > most:
            raise torch.OutOfMemoryError(MESSAGE)
        return rows

    assert fit(sizes, "update", 16, compute) == tries[-1]
    assert tried == tries
    assert sizes.limit("update", 16) == tries[-1]
    assert sizes.limit("reference", 16) == 16
    lines = [
        f"update: no GPU memory for 16 rows at a time (2.50 GiB asked for, 1.25 GiB free); from here on it computes "
        f"{tries[-1]}; to begin with it, set per_device_microbatch_size: {tries[-1]}"
    ]
    assert [record.getMessage() for record in caplog.records] == lines * (len(tries) > 1)
    fit(sizes, "update", 16, compute)
    assert tried == [*tries, tries[-1]]


def test_nothing_is_left_of_the_first_try():
    """Neither in frames of the traceback, nor in errors that another was raised for."""
    held = []

    def compute(rows):
        assert [x for x in held if x() is not None] == []
        tensor = torch.zeros(rows)
        held.append(weakref.ref(tensor))
        failure = None
        try:
            raise torch.OutOfMemoryError(MESSAGE)
        except torch.OutOfMemoryError as error:
            failure = error  # its traceback holds this frame, which holds it
        if rows > 2:
            other = tensor + 1
            held.append(weakref.ref(other))
            raise ValueError("the reward failed") from failure
        return rows

    assert fit(PartSizes(), "reward x", 8, compute) == 2
    assert len(held) == 5


def test_what_cannot_be_halved_is_raised():
    def compute(rows):
        raise ValueError("wrapped") from torch.OutOfMemoryError(MESSAGE)

    for asked, fixed, text in ((1, False, f", in the phase 'generation', {ONE_ROW}"), (4, True, "")):
        with pytest.raises(ValueError, match="wrapped") as raised:
            fit(PartSizes(), "generation", asked, compute, fixed=fixed)
        assert lacks_memory(raised.value)
        assert describe_full_gpu(raised.value) == f"{FULL}{text} (2.50 GiB asked for, 1.25 GiB free)"
    calls = []
    with pytest.raises(RuntimeError, match="size"):
        fit(PartSizes(), "generation", 4, lambda rows: calls.append(rows) or torch.zeros(2) @ torch.zeros(3))
    assert calls == [4]
    assert lacks_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))


def test_finished_parts_are_kept_and_the_smaller_size_of_others_is_taken():
    sizes, parts = PartSizes(), []

    def compute(numbers):
        parts.append([*numbers])
        if len(parts) in (2, 3):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return len(numbers)

    assert sizes.in_parts("generation", 4, range(9), compute) == [4, 1, 1, 1, 1, 1]
    assert parts == [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5], [6], [7], [8]]
    assert sizes.in_parts("other", 4, [], len) == [0]
    sizes.rows = {"update": 4, "reference": 8}
    sizes.lower({"update": 8, "reference": 2, "generation": 64})
    assert sizes.rows == {"update": 4, "reference": 2, "generation": 64}
