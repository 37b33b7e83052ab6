"""What is measured of a machine."""

import json
from dataclasses import asdict

import pytest
import torch

from rlhf_dialog.distributed import machine
from rlhf_dialog.distributed.machine import measure, processor, products

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(machine, "SECONDS", 0.0)


def test_products_are_two_operations_for_each_weight_and_row(monkeypatch):
    monkeypatch.setattr(machine, "ON_CPU", (8, 16, 32))
    monkeypatch.setattr(machine, "best_seconds", lambda call, device: 1e-6)
    assert products(CPU, torch.float32) == pytest.approx(2 * 8 * 16 * 32 / 1e-6 / 1e9)


def test_the_best_of_the_calls_counts(monkeypatch):
    times = iter([9.0, 3.0, 5.0, 2.0, 4.0, 6.0])  # the first is not counted, the least of the other five is
    monkeypatch.setattr(machine, "_run", lambda call, device: next(times))
    assert machine.best_seconds(lambda: None, CPU) == 2.0
    assert list(times) == []


def test_the_processor_and_its_flags(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx2 amx_bf16\n\nprocessor\t: 1\n")
    assert processor(path) == ("Some CPU @ 2 GHz", {"fpu", "avx2", "amx_bf16"})
    name, flags = processor(tmp_path / "absent")
    assert name
    assert flags == set()


def test_here(tmp_path):
    here = measure(tmp_path)
    assert here.float32 > 0
    assert here.bfloat16 > 0
    assert here.threads == torch.get_num_threads()
    assert here.cores > 0
    assert here.disk_free > 0
    assert here.folder == str(tmp_path)
    assert json.loads(json.dumps(asdict(here)))["processor"] == here.processor


def test_a_pretended_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 8))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Some GPU {device.index}")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(machine, "products", lambda device, dtype: 5.0 if device.type == "cuda" else 1.0)
    here = measure(tmp_path)
    assert [(gpu.name, gpu.free, gpu.total, gpu.float32, gpu.has_bfloat16) for gpu in here.gpus] == [
        ("Some GPU 0", 7, 8, 5.0, False),
        ("Some GPU 1", 7, 8, 5.0, False),
    ]
    assert here.gpu == here.gpus[0]
    assert here.float32 == 1.0
