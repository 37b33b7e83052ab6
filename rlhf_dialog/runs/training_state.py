"""What training leaves on disk and continues from exactly, as safetensors and JSON: weights, moments, random states."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlhf_dialog.config.loading import dump_yaml
from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed import random_states as torch_states
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.weights import check_moments, load_module, save_module
from rlhf_dialog.runs.checkpoint import as_user_error, read_state, save_checkpoint
from rlhf_dialog.runs.verification import way_back

OWN_KEYS = ("eps", "weight_decay")  # of an optimizer: a resumed run uses its own values


def save_training(
    folder: Path,
    config: Config,
    state: dict[str, Any],
    modules: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    random_of_ranks: Sequence[torch_states.RandomStates] = (),
    staged: Path | None = None,
) -> Path:
    """Write a checkpoint (`checkpoint.save_checkpoint`) of a language model's training, with its configuration.

    random_of_ranks: those of all processes, by default of this one only; staged: a folder whose files are moved into it
    """

    def fill(target: Path) -> dict[str, Any]:
        for key, module in modules.items():
            save_module(module, target / f"{key}.safetensors")
        groups = {key: save_optimizer(one, target / f"{key}_optimizer.safetensors") for key, one in optimizers.items()}
        for path in sorted(staged.iterdir()) if staged else ():
            path.rename(target / path.name)
        generators, python = torch_states.merged_states(random_of_ranks or [torch_states.random_states()])
        save_file(generators, target / "random.safetensors")
        (target / "config.yaml").write_text(dump_yaml(config), encoding="utf-8")
        return {"optimizers": groups, **python}

    return save_checkpoint(folder, state, fill, config.keep_checkpoints)


def load_training(
    folder: Path,
    modules: dict[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    world: World,
    source: Path | None = None,
) -> dict[str, Any]:
    """Restore modules, optimizers and this rank's random states; returns the saved state.

    Reads the checkpoint `source`, by default the newest in `folder`. Random states are not restored when the checkpoint was saved
    by another number of processes (`world_size_of`). Raises UserError when there is no checkpoint, or when it does not fit.
    """
    source, state = read_state(folder, source)
    with as_user_error(source, way_back):
        saved, ours = set(state["optimizers"]), set(optimizers)
        if saved != ours:
            raise UserError(f"{source}: has optimizers of {sorted(saved)}, but this run has {sorted(ours)}")
        for key, module in modules.items():
            load_module(module, source / f"{key}.safetensors", world.device)
        for key, optimizer in optimizers.items():
            load_optimizer(optimizer, source / f"{key}_optimizer.safetensors", state["optimizers"][key])
        if world_size_of(state) == world.size:
            torch_states.restore_random_states(
                *torch_states.select_rank_states(world.rank, load_file(source / "random.safetensors"), state)
            )
    return state


def world_size_of(state: dict[str, Any]) -> int:
    """The number of processes that saved the checkpoint."""
    return 1 + len(state.get("random_of_other_ranks", ()))


def load_weights(source: Path, modules: dict[str, nn.Module], device: torch.device) -> list[str]:
    """Load only the weights of the checkpoint `source`; returns the names of the modules that it lacks, which start fresh.

    Raises UserError when the policy's language model does not fit; a value head or a critic may be missing.
    """
    fresh = []
    for key, module in modules.items():
        path = source / f"{key}.safetensors"
        if key != "policy" and not path.is_file():
            fresh.append(key)
            continue
        with as_user_error(source):
            missing, unexpected = load_module(module, path, device, strict=False)
            heads = {name for name in (*missing, *unexpected) if name.startswith("value_head.")}
            if wrong := sorted({*missing, *unexpected} - heads):
                raise ValueError(f"{key} differs in {', '.join(wrong[:3])}")
            fresh += [f"{key}'s value head"] if heads & set(missing) else []
    return fresh


def save_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> list[dict[str, Any]]:
    """Write the moments into a safetensors file, as `3.exp_avg`; returns the JSON of the parameter groups."""
    state = optimizer.state_dict()
    save_file({f"{i}.{key}": x for i, slots in state["state"].items() for key, x in slots.items()}, path)
    return state["param_groups"]  # type: ignore[no-any-return]


def load_optimizer(optimizer: torch.optim.Optimizer, path: Path, groups: Sequence[Mapping[str, Any]]) -> None:
    """Restore what `save_optimizer` wrote. Raises what damaged files raise (`checkpoint.DAMAGE`)."""
    pairs = zip(groups, optimizer.state_dict()["param_groups"], strict=True)
    adopted = [{**group, **{name: own[name] for name in OWN_KEYS}} for group, own in pairs]
    slots: dict[int, dict[str, Tensor]] = {}
    for name, tensor in load_file(path).items():
        index, key = name.split(".", 1)
        slots.setdefault(int(index), {})[key] = tensor
    check_moments(optimizer, slots)
    optimizer.state.clear()  # before there are two
    optimizer.load_state_dict({"state": slots, "param_groups": adopted})
