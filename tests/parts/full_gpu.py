"""A GPU that is full at some calls of a function: they compute what they should, and then raise what torch would."""

import gc
from collections.abc import Collection
from typing import Any

import pytest
import torch

MESSAGE = (  # as torch writes it
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.68 GiB of which 1.25 GiB is free. "
    "Including non-PyTorch memory, this process has 22.40 GiB memory in use."
)


@pytest.fixture
def no_collection(monkeypatch):
    """The garbage collector is off: tensors are gone because nothing refers to them. It takes seconds in a large process."""
    monkeypatch.setattr(gc, "collect", lambda: 0)
    gc.disable()
    yield
    gc.enable()


def fill_gpu(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, at: Collection[int]) -> list[int]:
    """Let the calls of `place.name` with these numbers, from 1, run out of memory; returns a list with an item for each call."""
    compute, calls = getattr(place, name), []

    def full(*args: Any, **options: Any) -> Any:
        calls.append(len(calls) + 1)
        result = compute(*args, **options)
        if calls[-1] in at:
            raise torch.OutOfMemoryError(MESSAGE)
        return result

    monkeypatch.setattr(place, name, full)
    return calls
