"""The command that says what a machine can do, on machines that are pretended."""

import json
from dataclasses import replace
from importlib import metadata

import pytest

from rlhf_dialog.commands import doctor
from rlhf_dialog.commands.doctor import main, optional_packages
from tests.parts.machines import GIB, GPU, LAPTOP
from tests.parts.processes import ROOT


@pytest.fixture
def on(monkeypatch, capsys, tmp_path):
    """What the command says on a machine, and with the packages that are installed there."""
    monkeypatch.chdir(tmp_path)

    def said(machine, installed=(), *words):
        monkeypatch.setattr("rlhf_dialog.distributed.machine.measure", lambda folder: machine)
        monkeypatch.setattr(doctor, "_version", lambda name: "1.0" if name in installed else None)
        monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
        assert main([*words]) == 0
        return capsys.readouterr().out

    return said


def test_a_laptop(on):
    lines = on(LAPTOP, ("gguf",)).splitlines()
    assert max(map(len, lines)) <= 100
    text = " ".join(" ".join(lines).split())
    assert "processor Some CPU, 4 cores, 4 threads of torch" in text
    assert "float32 100 GFLOP/s, bfloat16 20 GFLOP/s, which it emulates; load average 0.5" in text
    assert "memory 16.0 GiB, 12.0 GiB available GPU none that torch can use" in text
    assert "disk 50.0 GiB free in /home/me" in text
    assert "gguf 1.0: the weights of SmolLM2" in text
    assert f'deepspeed missing: ZeRO on several GPUs (use_deepspeed); pip install -e "{ROOT}[deepspeed]"' in text
    assert "chromium missing: tests of the page in a browser; apt-get install chromium" in text
    assert "Llama 8B, all parameters: does not fit: it needs" in text
    assert "Llama 1B with LoRA: fits: it needs" in text


def test_a_control_group_with_less_memory(on):
    machine = replace(LAPTOP, memory_limit=2 * GIB, memory_available=GIB)
    text = " ".join(on(machine).split())
    assert "16.0 GiB, 1.0 GiB available; limit of the control group 2.0 GiB" in text
    assert text.count("does not fit") == 4


def test_a_gpu_and_a_system_that_does_not_say_its_memory(on):
    machine = replace(LAPTOP, gpus=(GPU,), memory_total=None, memory_available=None, load=None, extensions=())
    text = " ".join(on(machine).split())
    assert "GPU Some GPU, 79.0 of 80.0 GiB free" in text.replace("79.0 GiB of", "79.0 of")
    assert "bfloat16 400,000 GFLOP/s" in text
    assert "memory unknown, unknown available" in text
    assert "Llama 8B with LoRA: fits" in text


def test_json_says_the_same(on):
    whole = json.loads(on(LAPTOP, ("gguf",), "--json"))
    assert whole["machine"]["float32"] == 100.0
    assert {package["name"]: package["version"] for package in whole["packages"]} == {
        **{"gguf": "1.0", "gradio": None, "deepspeed": None},
        "chromium": None,
    }
    assert {row["what"]: row["fits"] for row in whole["runs"]}["Llama 8B, all parameters"] is False


def test_the_install_commands_are_for_extras_that_are_there(monkeypatch, tmp_path):
    """pyproject.toml has the extra, and the extra has the package."""
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for name, (extra, _) in doctor.EXTRAS.items():
        assert any(line.startswith(name) for line in extras[extra])
    assert {package.install for package in optional_packages(ROOT)} >= {'pip install -e ".[gguf]"'}


def test_without_a_checkout_the_packages_of_the_extra_are_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "CHECKOUT", tmp_path)
    lines = ["torch>=2.6", 'gguf>=0.17; extra == "gguf"', 'gguf>=0.17; extra == "dev"']
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    assert doctor._install("gguf", tmp_path) == 'pip install "gguf>=0.17"'
