"""How long launchers wait after SIGTERM, and a single process that one of them starts in place of several."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_dialog.distributed import launcher_warnings
from tests.parts.processes import environment, run_command
from tests.parts.ranks import free_port

OF_LAUNCHERS = (
    *("WORLD_SIZE", "TORCHELASTIC_RUN_ID", "CROSS_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "ACCELERATE_MIXED_PRECISION"),
    *launcher_warnings.OF_TORCHRUN,
)
REPORT = """
import logging, os, signal, sys
from rlhf_dialog.distributed import launcher_warnings
logging.basicConfig(format="%(message)s")
launcher_warnings.report(float(sys.argv[1]))
os.write(1, f"processes {os.environ.get('WORLD_SIZE')}\\n".encode())
"""
STAY = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path("asked").touch())
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in OF_LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


def said(caplog, grace_seconds: float = 20.0) -> str:
    caplog.clear()
    launcher_warnings.report(grace_seconds)
    return caplog.text


def test_nothing_is_said_of_one_process(caplog, monkeypatch):
    assert said(caplog, 1000.0) == ""
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")  # of another program
    assert said(caplog, 1000.0) == ""


def test_torchrun_kills_before_the_grace_is_over(caplog, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(launcher_warnings, "parents_command", list)
    assert said(caplog, 20.0) == said(caplog, 30.0) == ""
    message = said(caplog, 119.5)
    assert "grace_seconds: 119.5, but torchrun kills its processes 30 s after SIGTERM" in message
    assert "--shutdown_timeout 150 (accelerate launch: set TORCH_ELASTIC_SHUTDOWN_TIMEOUT=150)" in message
    launcher_warnings.report(119.5, speaks=False)
    monkeypatch.setattr(launcher_warnings, "has_shutdown_timeout", lambda: False)
    assert "cannot wait longer: lower grace_seconds" in said(caplog, 119.5)
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "600")  # which an older torchrun does not read
    assert "30 s after SIGTERM" in said(caplog, 119.5)


@pytest.mark.parametrize(
    ("command", "changes", "seconds"),
    [
        ("torchrun --nproc_per_node 2 train_ppo.py", {}, 30),
        ("torchrun --shutdown_timeout 200 train_ppo.py", {}, 200),
        ("torchrun --shutdown-timeout=200 train_ppo.py", {}, 200),
        ("torchrun train_ppo.py", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "90"}, 90),
        ("torchrun train_ppo.py", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "90", "PET_SHUTDOWN_TIMEOUT": "80"}, 80),
        ("torchrun --shutdown_timeout 7 train_ppo.py", {"PET_SHUTDOWN_TIMEOUT": "80"}, 7),
        ("torchrun --shutdown_timeout", {}, 30),
        ("", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "soon"}, 30),
    ],
)
def test_how_long_torchrun_waits(monkeypatch, command, changes, seconds):
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    assert launcher_warnings.torchrun_patience(command.split()) == seconds


def test_the_command_line_of_the_parent(tmp_path):
    (tmp_path / str(os.getppid())).mkdir()
    (tmp_path / str(os.getppid()) / "cmdline").write_bytes(b"torchrun\0--shutdown_timeout\x00100\0\xff\0")
    assert launcher_warnings.parents_command(tmp_path)[:3] == ["torchrun", "--shutdown_timeout", "100"]
    assert launcher_warnings.parents_command(tmp_path / "nowhere") == []


def test_the_launcher_of_deepspeed_waits_as_long_and_cannot_be_asked_for_more(caplog, monkeypatch):
    for name in ("CROSS_SIZE", "LOCAL_SIZE", "WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    assert said(caplog, 20.0) == ""
    assert "DeepSpeed's launcher kills its processes 30 s after SIGTERM" in said(caplog, 60.0)


SETTLE = """
import os, sys
from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.strategy import settle
from rlhf_dialog.errors import UserError
raw = {"model_path": "m", "env": {"args": {"data_path": "d"}}, "reward_class": {"id": "LengthMatch"}}
try:
    settle(Config.model_validate(raw))
except UserError as error:
    sys.exit(f"error: {error}")
os.write(1, f"processes {os.environ.get('WORLD_SIZE')}\\n".encode())
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("words", "processes"),
    [
        (["--cpu", "--num_processes", "2", "--num_machines", "1"], None),
        (["--cpu", "--num_processes", "1", "--num_machines", "1"], ["None"]),
        (["--multi_gpu", "--num_processes", "2", "--num_machines", "1"], ["2", "2"]),
    ],
)
def test_accelerate_launch_itself(tmp_path, words, processes):
    (tmp_path / "settle.py").write_text(SETTLE)
    program = Path(sys.executable).with_name("accelerate")
    more = ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", str(free_port())]
    changes = {"ACCELERATE_USE_CPU": "true"} if "--multi_gpu" in words else {}
    ran = run_command(program, "launch", *words, *more, tmp_path / "settle.py", env=environment(**changes))
    if processes is None:
        assert ran.returncode == 1, ran.stderr
        assert ran.stderr.count("error: accelerate launch has started a single process") == 1
    else:
        assert ran.stdout.split() == [word for number in processes for word in ("processes", number)], ran.stderr


@pytest.mark.multiprocess
@pytest.mark.parametrize("given", [["--shutdown_timeout", "150"], []])
def test_torchrun_itself(tmp_path, given):
    """The processes read from its command line how long it waits, and it waits as long."""
    (tmp_path / "report.py").write_text(REPORT)
    (tmp_path / "stay.py").write_text(STAY)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "3", "--master_port"]
    ran = run_command(*command, str(free_port()), *given, tmp_path / "report.py", "120")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["processes", "3"] * 3
    assert ran.stderr.count("torchrun kills its processes 30 s after SIGTERM") == (0 if given else 3)
    if given:
        words = [*command[:-1], "--shutdown_timeout", "1", "--master_port", str(free_port()), str(tmp_path / "stay.py")]
        with subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as launched:
            for _ in range(3):
                assert launched.stdout.readline() == "ready\n"
            launched.send_signal(signal.SIGTERM)
            launched.wait()
        assert (tmp_path / "asked").exists()  # SIGTERM came first; what ignores it is killed after a second
