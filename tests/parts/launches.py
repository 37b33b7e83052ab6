"""The variables that `accelerate launch` sets for a process of a configuration; accelerate itself makes them."""

import argparse
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands import launch
from accelerate.utils.launch import (
    prepare_deepspeed_cmd_env,
    prepare_multi_gpu_env,
    prepare_simple_launcher_cmd_env,
    prepare_tpu,
)

PREFIXES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "MEGATRON_LM_", "XLA_", "MASTER_", "SLURM_", "OMPI_", "PMI_")
OF_RANKS = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def forget_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of a launcher is set."""
    for name in [name for name in os.environ if name.startswith(PREFIXES) or name in OF_RANKS]:
        monkeypatch.delenv(name)


def launched_variables(folder: Path, answers: dict[str, Any], *options: str) -> dict[str, str]:
    """What `accelerate launch --config_file FILE OPTIONS` sets for rank 0, where the file holds `answers`.

    Where several processes are started, torchrun's variables are among them.
    """
    file = folder / "accelerate.yaml"
    base = {"compute_environment": "LOCAL_MACHINE", "num_processes": 2, "num_machines": 1, "main_process_port": 0}
    file.write_text(yaml.safe_dump(base | answers))
    variables: dict[str, str] = {}

    def keep(made: dict[str, str], args: argparse.Namespace, several: bool) -> None:
        variables.update(made)
        if several:
            ranks = ("0", "0", str(args.num_processes))
            variables.update(zip(("RANK", "LOCAL_RANK", "WORLD_SIZE"), ranks, strict=True))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            launch, "simple_launcher", lambda args: keep(prepare_simple_launcher_cmd_env(args)[1], args, False)
        )
        patch.setattr(launch, "multi_gpu_launcher", lambda args: keep(prepare_multi_gpu_env(args), args, True))
        patch.setattr(launch, "deepspeed_launcher", lambda args: keep(prepare_deepspeed_cmd_env(args)[1], args, True))
        patch.setattr(launch, "tpu_launcher", lambda args: keep(prepare_tpu(args, {})[1], args, False))
        launch.launch_command(
            launch.launch_command_parser().parse_args(["--config_file", str(file), *options, "train_ppo.py"])
        )
    return {name: value for name, value in variables.items() if os.environ.get(name) != value}
