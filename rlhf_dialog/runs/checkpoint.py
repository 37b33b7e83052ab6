"""Save a run and continue it exactly: safetensors and JSON, written under a temporary name, the `latest` pointer last."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file, save_model
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from rlhf_dialog.atomic_files import remove_whole, replace_text, write_json, written_whole
from rlhf_dialog.config.loading import dump_yaml
from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.random_states import (
    RandomStates,
    merged_states,
    random_states,
    restore_random_states,
    states_of_rank,
)
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import AGENT_FILE, AGENT_FORMAT
from rlhf_dialog.models.loading import Policy
from rlhf_dialog.models.lora import merged_state
from rlhf_dialog.models.weights import load_module, save_module

FORMAT_VERSION = 1
UNANNOUNCED = "unannounced"  # in a checkpoint that `latest` does not name yet: what `latest` was before it
POINTER_REMEDY = "write the name of a checkpoint beside it into it (iter_000004), or remove it"
NAME = r"iter_[0-9]+"
OWN_KEYS = ("eps", "weight_decay")  # of an optimizer: a resumed run has its own


def save_checkpoint(
    folder: Path,
    config: Config,
    state: dict[str, Any],
    modules: dict[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    best: bool = False,
    random_of_ranks: Sequence[RandomStates] = (),
    staged: Path | None = None,
) -> Path:
    """Write `folder`/iter_NNNNNN and point `latest` at it, and `best` too if it is the best so far.

    Of those up to this one the newest `keep_checkpoints` and the best stay, the others go. `state` is JSON with its
    "iteration"; `random_of_ranks` the random states of every process, by default of this one alone; the files in `staged` go
    with it.
    Raises UserError when the folder cannot be written; what was there stays whole.
    """
    name = f"iter_{state['iteration']:06d}"
    with written_whole(folder / name) as target:
        for key, module in modules.items():
            save_module(module, target / f"{key}.safetensors")
        scalars = {}
        for key, optimizer in optimizers.items():
            tensors, scalars[key] = _split(optimizer.state_dict())
            save_file(tensors, target / f"{key}_optimizer.safetensors")
        for path in sorted(staged.iterdir()) if staged else ():
            path.rename(target / path.name)
        generators, python = merged_states(random_of_ranks or [random_states()])
        save_file(generators, target / "random.safetensors")
        (target / "config.yaml").write_text(dump_yaml(config), encoding="utf-8")
        write_json(
            target / "trainer.json",
            {"format_version": FORMAT_VERSION, **state, "optimizers": scalars, **python},
        )
        (target / UNANNOUNCED).write_bytes(_text_of(folder / "latest"))
    try:
        replace_text(folder / "latest", name)
        (folder / name / UNANNOUNCED).unlink()
        if best:
            mark_best(folder, state["iteration"])
        branch = [one for one in checkpoints_of(folder) if iteration_of(one) <= state["iteration"]]
        for old in branch[: -config.keep_checkpoints]:
            if old != best_checkpoint(folder):
                remove_whole(old)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error}") from error
    return folder / name


def mark_best(folder: Path, iteration: int) -> None:
    """Point `folder`/best at the checkpoint of `iteration`. Raises OSError when it cannot be written."""
    replace_text(folder / "best", f"iter_{iteration:06d}")


def finish_saving(folder: Path) -> None:
    """Point `latest` at the checkpoint that a kill left whole but unannounced, unless `latest` has been changed since.

    Raises OSError when that cannot be written.
    """
    for checkpoint in checkpoints_of(folder):
        if (checkpoint / UNANNOUNCED).is_file():
            if _text_of(folder / "latest") == (checkpoint / UNANNOUNCED).read_bytes():
                replace_text(folder / "latest", checkpoint.name)
            (checkpoint / UNANNOUNCED).unlink()


def _text_of(pointer: Path) -> bytes:
    return pointer.read_bytes() if pointer.is_file() else b""


def checkpoints_of(folder: Path) -> list[Path]:
    """The checkpoints in the folder by their iterations, the first one first."""
    return sorted((one for one in folder.glob("iter_*") if re.fullmatch(NAME, one.name)), key=iteration_of)


def iteration_of(checkpoint: Path) -> int:
    """The iteration that the name of a checkpoint says."""
    return int(checkpoint.name.removeprefix("iter_"))


def read_state(folder: Path, source: Path | None = None) -> tuple[Path, dict[str, Any]]:
    """The folder of the checkpoint `source`, by default the newest, and its trainer.json; no tensor is read.

    Raises UserError when there is none, when it is damaged or of another format, and when a name in it leads elsewhere.
    """
    source = source or newest_checkpoint(folder)
    if source is None:
        raise UserError(f"{folder}: holds no checkpoint to resume from; start without --resume")
    with damage_told(source):
        for path in (source, *source.rglob("*")):
            if path.is_symlink():
                raise UserError(
                    f"{path}: is a link to {os.readlink(path)}, and a checkpoint holds its files itself; copy them here, or "
                    "resume from another checkpoint"
                )
        state = json.loads((source / "trainer.json").read_text(encoding="utf-8"))
        if state["format_version"] != FORMAT_VERSION:
            raise UserError(
                f"{source}: has format version {state['format_version']}, this program reads {FORMAT_VERSION}"
            )
        if not isinstance(state["iteration"], int):
            raise TypeError("its iteration is no number")
        if state["iteration"] != iteration_of(source):
            raise UserError(
                f"{source}: holds the state of iteration {state['iteration']}; rename it to iter_{state['iteration']:06d}, or "
                "resume from another checkpoint"
            )
    return source, state


@contextmanager
def damage_told(source: Path) -> Iterator[None]:
    """Whatever unusable content of a checkpoint raises in the block becomes a UserError that names its folder."""
    try:
        yield
    except (
        *(OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, SafetensorError),
    ) as error:
        raise UserError(f"{source}: is damaged or does not fit this run: {type(error).__name__}: {error}") from error


def load_checkpoint(
    folder: Path,
    modules: dict[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
    source: Path | None = None,
) -> dict[str, Any]:
    """Restore modules, optimizers and this rank's random states; returns the state as saved.

    They are those of the checkpoint `source`, by default of the newest in `folder`.

    Random states are left alone when so many processes are not those that saved it (`world_size_of`).
    Raises UserError when there is none, or when it does not fit.
    """
    source, state = read_state(folder, source)
    with damage_told(source):
        saved, ours = set(state["optimizers"]), set(optimizers)
        if saved != ours:
            raise UserError(f"{source}: was saved with optimizers of {sorted(saved)}, this run has {sorted(ours)}")
        for key, module in modules.items():
            load_module(module, source / f"{key}.safetensors", device)
        for key, optimizer in optimizers.items():
            tensors = load_file(source / f"{key}_optimizer.safetensors")
            groups = [
                {**group, **{name: own[name] for name in OWN_KEYS}}
                for group, own in zip(state["optimizers"][key], optimizer.param_groups, strict=True)
            ]
            optimizer.load_state_dict(_join(tensors, groups))
        if world_size_of(state) == world_size:
            restore_random_states(*states_of_rank(rank, load_file(source / "random.safetensors"), state))
    return state


def world_size_of(state: dict[str, Any]) -> int:
    """How many processes saved the checkpoint."""
    return 1 + len(state.get("random_of_other_ranks", ()))


def load_weights(source: Path, modules: dict[str, nn.Module], device: torch.device) -> list[str]:
    """Take only the weights of the checkpoint `source`; returns the names of what it does not have and begins anew.

    Raises UserError when the policy's language model does not fit; a value head or a critic may be missing.
    """
    fresh = []
    for key, module in modules.items():
        path = source / f"{key}.safetensors"
        if key != "policy" and not path.is_file():
            fresh.append(key)
            continue
        with damage_told(source):
            missing, unexpected = load_module(module, path, device, strict=False)
            heads = {name for name in (*missing, *unexpected) if name.startswith("value_head.")}
            if wrong := sorted({*missing, *unexpected} - heads):
                raise ValueError(f"{key} differs in {', '.join(wrong[:3])}")
            fresh += [f"{key}'s value head"] if heads & set(missing) else []
    return fresh


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that `latest` names; without that pointer (a kill came before it) the last one; None for none.

    Raises UserError when the pointer names anything but a checkpoint of this folder.
    """
    if (folder / "latest").is_symlink() or (folder / "latest").exists():
        source = _pointed(folder / "latest")
        if not source.is_dir():
            raise UserError(f"{folder / 'latest'}: names {source.name}, which is not there; {POINTER_REMEDY}")
        return source
    return max(checkpoints_of(folder), key=iteration_of, default=None)


def best_checkpoint(folder: Path) -> Path | None:
    """The folder that the pointer `best` names; None where no evaluation has chosen one.

    Raises UserError when it names anything but a checkpoint of this folder.
    """
    pointer = folder / "best"
    return _pointed(pointer) if pointer.is_symlink() or pointer.exists() else None


def _pointed(pointer: Path) -> Path:
    """The checkpoint that a pointer names: `iter_` and digits, so that nothing outside of its folder is ever read."""
    if pointer.is_symlink():
        raise UserError(f"{pointer}: is a link, where a file with the name of a checkpoint is wanted; {POINTER_REMEDY}")
    try:
        name = pointer.read_bytes()[:200].decode("utf-8", "replace").strip()
    except OSError as error:
        raise UserError(f"{pointer}: cannot be read: {error.strerror}; {POINTER_REMEDY}") from error
    if not re.fullmatch(NAME, name):
        raise UserError(f"{pointer}: names {name!r}, which is no checkpoint of this folder; {POINTER_REMEDY}")
    return pointer.parent / name


def save_agent(folder: Path, policy: Policy, tokenizer: PreTrainedTokenizerBase, config: Config) -> None:
    """Write the trained agent: a folder for `AutoModelForCausalLM.from_pretrained`, the value head and our settings beside it."""
    with written_whole(folder) as target:
        merged = None if policy.adapter is None else merged_state(policy.lm, policy.adapter)
        policy.lm.save_pretrained(target, state_dict=merged)
        tokenizer.save_pretrained(target)
        if policy.value_head is not None:
            save_model(policy.value_head, str(target / "value_head.safetensors"))
        settings = config.model_dump(
            include={
                "turn_separator",
                "context_size",
                "max_prompt_length",
                "max_new_tokens",
                "temperature",
                "top_k",
                "top_p",
            }
        )
        write_json(target / AGENT_FILE, {"format_version": AGENT_FORMAT, **settings})


def _split(state: dict[str, Any]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """An optimizer's state as named tensors (`3.exp_avg`) and the JSON of its parameter groups."""
    tensors = {f"{i}.{key}": value for i, slots in state["state"].items() for key, value in slots.items()}
    return tensors, state["param_groups"]


def _join(tensors: dict[str, Tensor], groups: list[dict[str, Any]]) -> dict[str, Any]:
    slots: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, key = name.split(".", 1)
        slots.setdefault(int(index), {})[key] = tensor
    return {"state": slots, "param_groups": groups}
