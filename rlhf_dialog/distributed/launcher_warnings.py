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
TASKS = {"SLURM_STEP_NUM_TASKS": "srun", "OMPI_COMM_WORLD_SIZE": "mpirun", "PMI_SIZE": "mpirun"}


def report(grace_seconds: float, speaks: bool = True) -> None:
    """Log a warning for each thing about the launcher that costs iterations or processes, if this process `speaks`."""
    for text in (_patience_warning(grace_seconds), _single_process_warning()) if speaks else ():
        if text:
            logger.warning("%s", text)


def _patience_warning(grace_seconds: float) -> str | None:
    """A launcher that kills its processes before `grace_seconds` have passed."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        patience, launcher = torchrun_patience(parents_command()), "torchrun"
        seconds = math.ceil(grace_seconds) + PATIENCE
        remedy = (
            f"start torchrun with --shutdown_timeout {seconds} (accelerate launch: set TORCH_ELASTIC_SHUTDOWN_TIMEOUT={seconds})"
            if has_shutdown_timeout()
            else f"that of torch {torch.__version__} cannot wait longer: lower grace_seconds, or install a newer torch"
        )
    elif "CROSS_SIZE" in os.environ and "LOCAL_SIZE" in os.environ:
        patience, launcher = PATIENCE, "DeepSpeed's launcher"
        remedy = "it has no option for that: lower grace_seconds, or start the run with torchrun --shutdown_timeout"
    else:
        return None
    if grace_seconds <= patience:
        return None
    return (
        f"grace_seconds: {grace_seconds:g}, but {launcher} kills its processes {patience:g} s after SIGTERM, and an iteration "
        f"that takes longer is lost; {remedy}"
    )


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


def _single_process_warning() -> str | None:
    """One process, where the launcher was asked for several.

    accelerate sets an address for several processes, but starts one of them under --cpu; srun and mpirun do not say to
    torch what they have started.
    """
    if "WORLD_SIZE" in os.environ:
        return None
    if "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ:
        return (
            "accelerate launch has started a single process, although MASTER_ADDR is set as for several; on CPUs start it as "
            "ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes 2 ..., without --cpu, or use torchrun"
        )
    for name, launcher in TASKS.items():
        if os.environ.get(name, "1") not in ("", "0", "1"):
            return (
                f"{launcher} has started {os.environ[name]} tasks, but each of them trains alone, because WORLD_SIZE is not set; "
                "start one torchrun on each host, see docs/SCALING.md"
            )
    return None
