"""The command that says what a machine has and which runs fit, on machines that are pretended."""

import pytest
import torch

from rlhf_dialog.commands.doctor import main
from rlhf_dialog.distributed import memory

GIB = 2**30


@pytest.fixture
def on(monkeypatch, capsys):
    """What the command says on a machine with this free and total memory."""

    def said(free, total, gpu=False):
        monkeypatch.setattr(memory, "host_memory", lambda: (free, total))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: int(gpu))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "Some GPU")
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, total))
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
        assert main([]) == 0
        return " ".join(capsys.readouterr().out.split())

    return said


def test_a_laptop(on):
    text = on(12 * GIB, 16 * GIB)
    assert "GPU none that torch can use memory 12.0 GiB free of 16.0 GiB disk" in text
    assert "configs/chat_smollm2.yaml: fits: it needs 3.8 GiB of memory, of 12.0 GiB free" in text
    assert "Llama 1B with LoRA: fits" in text
    assert "Llama 8B with LoRA: does not fit" in text


def test_a_system_that_does_not_say_its_memory(on):
    text = on(None, None)
    assert "memory unknown free of unknown" in text
    assert "does not fit" not in text


def test_a_gpu_computes_in_its_own_memory(on):
    """8.03 billion parameters of 2 bytes are 15 GiB; trained ones take 16 bytes, 120 GiB, and the reference 2."""
    text = on(79 * GIB, 80 * GIB, gpu=True)
    assert "GPU Some GPU memory 79.0 GiB free of 80.0 GiB on the GPU" in text
    assert "Llama 8B with LoRA: fits" in text
    assert "Llama 8B, all parameters: does not fit" in text
