"""The part of a trained model that each process holds under ZeRO, as safetensors: fp32 weights and optimizer state.

DeepSpeed's own checkpoints are pickles that it reads with `weights_only=False`; these files hold only tensors and numbers.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rlhf_dialog.atomic_files import disk_errors_as_user_errors
from rlhf_dialog.distributed.deepspeed_engine import DeepSpeedEngine
from rlhf_dialog.distributed.engine import Engine
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError

STAGING = ".partitions.tmp"


def shared_out(engines: Mapping[str, Engine]) -> dict[str, DeepSpeedEngine]:
    """The engines whose optimizer is partitioned over the processes."""
    return {name: engine for name, engine in engines.items() if isinstance(engine, DeepSpeedEngine)}


def whole_optimizers(engines: Mapping[str, Engine]) -> dict[str, torch.optim.Optimizer]:
    """The optimizers that every process holds in full."""
    return {name: e.optimizer for name, e in engines.items() if name not in shared_out(engines)}


def write_partitions(checkpoints: Path, engines: Mapping[str, Engine], world: World) -> Path | None:
    """Write each rank's partitions into a hidden folder, from which rank 0 moves them to the checkpoint; None without any.

    Raises UserError when the folder cannot be written.
    """
    mine, staging = shared_out(engines), checkpoints / STAGING
    if not mine:
        return None

    def begin() -> None:
        forget_staging(checkpoints)
        with disk_errors_as_user_errors(staging):
            staging.mkdir(parents=True)

    world.on_main(begin)
    with world.fail_together(), disk_errors_as_user_errors(staging):
        for name, engine in mine.items():
            save_file(engine.partitions(), staging / f"{name}_rank{world.rank}.safetensors")
    return staging


def forget_staging(checkpoints: Path) -> None:
    """Remove the files that an interrupted `write_partitions` left behind."""
    shutil.rmtree(checkpoints / STAGING, ignore_errors=True)


def describe(engines: Mapping[str, Engine], world: World) -> dict[str, Any]:
    """The description of the partitions in a checkpoint, as JSON; empty without any."""
    engines_of_zero = {
        name: {"stage": engine.stage, "world_size": world.size, **engine.describe_partitions()}
        for name, engine in shared_out(engines).items()
    }
    return {"zero": engines_of_zero} if engines_of_zero else {}


def refuse_another_partitioning(
    source: Path, state: dict[str, Any], engines: Mapping[str, Engine], world: World
) -> None:
    """Raises UserError when the optimizer in the checkpoint was partitioned in another way."""

    def layouts(described: dict[str, Any]) -> list[str]:
        return [
            f"ZeRO stage {one['stage']} in {one['precision']} on {one['world_size']} processes"
            for _, one in sorted(described.get("zero", {}).items())
        ]

    then, now = layouts(state), layouts(describe(engines, world))
    if then != now:
        saved, ours = (found[0] if found else "no ZeRO" for found in (then, now))
        raise UserError(
            f"{source}: was saved with {saved}, but this run has {ours}; resume with the settings it was saved with, or take "
            f"its weights alone: --resume_weights_only {source.parent.parent} --experiment_name <a new name>"
        )


def read_partitions(source: Path, state: dict[str, Any], engines: Mapping[str, Engine], world: World) -> None:
    """Restore this rank's partitions. Raises ValueError when they do not fit, and the errors of reading the files."""
    for name, engine in shared_out(engines).items():
        tensors = load_file(source / f"{name}_rank{world.rank}.safetensors")
        engine.restore_partitions(tensors, state["zero"][name]["scaler"])
