"""What the program that started the processes does to a run, and the notices about it."""

import dataclasses
import logging
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.distributed.launcher import LaunchConfig

logger = logging.getLogger(__name__)
PATIENCE = 30  # seconds between SIGTERM and SIGKILL, of torchrun by default and of DeepSpeed's launcher always
OPTION = re.compile(r"--shutdown[-_]timeout(?:=(.*))?")
OF_TORCHRUN = ("PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")  # environment variables that it reads


def report(grace_seconds: float, speaks: bool = True) -> None:
    """Warn of a launcher that kills its processes before `grace_seconds` have passed, if this process `speaks`."""
    patience, launcher, seconds = math.inf, "", math.ceil(grace_seconds) + PATIENCE
    if "TORCHELASTIC_RUN_ID" in os.environ:
        patience, launcher = torchrun_patience(parents_command()), "torchrun"
        remedy = (
            f"start torchrun with --shutdown_timeout {seconds} (accelerate launch: set TORCH_ELASTIC_SHUTDOWN_TIMEOUT={seconds})"
            if has_shutdown_timeout()
            else f"that of torch {torch.__version__} cannot wait longer: lower grace_seconds, or install a newer torch"
        )
    elif "CROSS_SIZE" in os.environ and "LOCAL_SIZE" in os.environ:
        patience, launcher = PATIENCE, "DeepSpeed's launcher"
        remedy = "it has no option for that: lower grace_seconds, or start the run with torchrun --shutdown_timeout"
    if speaks and grace_seconds > patience:
        text = "grace_seconds: %g, but %s kills its processes %g s after SIGTERM, and an iteration that takes longer is lost; %s"
        logger.warning(text, grace_seconds, launcher, patience, remedy)


def has_shutdown_timeout() -> bool:
    """Whether the torchrun of this torch can wait longer than 30 s."""
    return "shutdown_timeout" in {field.name for field in dataclasses.fields(LaunchConfig)}


def torchrun_patience(command: Sequence[str]) -> float:
    """The seconds that a torchrun with this command line, and with the environment of this process, waits after SIGTERM."""
    timeouts = [os.environ[name] for name in reversed(OF_TORCHRUN) if name in os.environ]
    for word, following in zip(command, [*command[1:], ""], strict=False):
        if found := OPTION.fullmatch(word):
            timeouts.append(following if found[1] is None else found[1])
    try:
        return float(timeouts[-1]) if timeouts and has_shutdown_timeout() else PATIENCE
    except ValueError:
        return PATIENCE


def parents_command(proc: Path = Path("/proc")) -> list[str]:
    """The command line of the program that started this process; empty where the system does not show it."""
    try:
        return (proc / str(os.getppid()) / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return []
