"""The part of a trained model that each process holds under ZeRO, as safetensors: fp32 weights and optimizer state.

DeepSpeed's own checkpoints are pickles that it reads with `weights_only=False`; these files hold only tensors and numbers.
"""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rlhf_dialog.distributed.engine import Engine
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError

STAGING = ".partitions.tmp"


def shared_out(engines: Mapping[str, Engine]) -> dict[str, Engine]:
    """The engines whose optimizer is partitioned over the processes."""
    return {name: e for name, e in engines.items() if e.stage > 0}


def whole_optimizers(engines: Mapping[str, Engine]) -> dict[str, torch.optim.Optimizer]:
    """The optimizers that every process holds in full."""
    return {name: e.optimizer for name, e in engines.items() if name not in shared_out(engines)}


def file_name(name: str, rank: int) -> str:
    return f"{name}_rank{rank}.safetensors"


def write_partitions(checkpoints: Path, engines: Mapping[str, Engine], world: World) -> Path | None:
    """Write each rank's partitions into a hidden folder, from which rank 0 moves them to the checkpoint; None without any.

    Raises UserError when the folder cannot be written.
    """
    mine = shared_out(engines)
    if not mine:
        return None
    staging = checkpoints / STAGING

    def begin() -> None:
        try:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
        except OSError as error:
            raise UserError(f"{staging}: cannot be written: {error}") from error

    world.on_main(begin)
    with world.fail_together():
        for name, engine in mine.items():
            try:
                save_file(engine.partitions(), staging / file_name(name, world.rank))
            except OSError as error:
                raise UserError(f"{staging}: cannot be written: {error}") from error
    return staging


def forget_staging(checkpoints: Path) -> None:
    """Remove the files that an interrupted `write_partitions` left behind."""
    with suppress(OSError):
        shutil.rmtree(checkpoints / STAGING)


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
    then = {name: _sharing(found) for name, found in state.get("zero", {}).items()}
    now = {name: _sharing(found) for name, found in describe(engines, world).get("zero", {}).items()}
    if then == now:
        return
    layouts = [next(iter(found.values()), "no ZeRO stage 1 to 3") for found in (then, now)]
    run = source.parent.parent
    raise UserError(
        f"{source}: was saved with {layouts[0]}, but this run has {layouts[1]}; the optimizer state is stored per process and "
        "does not fit. Resume with the settings it was saved with, or start a new run from its weights: --resume_weights_only "
        f"{run} --experiment_name <a new name> (DeepSpeed's ds_to_universal converts only its own pickled checkpoints, which "
        "this program neither writes nor reads)"
    )


def _sharing(found: dict[str, Any]) -> str:
    return f"ZeRO stage {found['stage']} in {found['precision']} on {found['world_size']} processes"


def read_partitions(source: Path, state: dict[str, Any], engines: Mapping[str, Engine], world: World) -> None:
    """Restore this rank's partitions. Raises ValueError when they do not fit, and the errors of reading the files."""
    for name, engine in shared_out(engines).items():
        engine.restore_partitions(load_file(source / file_name(name, world.rank)), state["zero"][name]["scaler"])
