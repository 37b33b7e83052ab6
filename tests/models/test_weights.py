"""What a checkpoint holds of a module: all of it, or of one with adapters what is trained."""

import pytest
import torch

from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.weights import load_module, save_module
from tests.parts.tiny import gpt2

CPU = torch.device("cpu")


def equal(one, other) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_a_whole_module_comes_back(tmp_path):
    first, second = Policy(gpt2(1), with_value_head=True), Policy(gpt2(2), with_value_head=True)
    save_module(first, tmp_path / "x.safetensors")
    assert not equal(first, second)
    assert load_module(second, tmp_path / "x.safetensors", CPU) == ([], [])
    assert equal(first, second)


def test_names_that_are_missing_or_too_many(tmp_path):
    save_module(Policy(gpt2()), tmp_path / "bare.safetensors")
    headed = Policy(gpt2(), with_value_head=True)
    save_module(headed, tmp_path / "headed.safetensors")
    head = ["value_head.bias", "value_head.weight"]
    assert load_module(headed, tmp_path / "bare.safetensors", CPU, strict=False) == (head, [])
    assert load_module(Policy(gpt2()), tmp_path / "headed.safetensors", CPU, strict=False) == ([], head)
    with pytest.raises(RuntimeError, match="value_head"):
        load_module(headed, tmp_path / "bare.safetensors", CPU)
