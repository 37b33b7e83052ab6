"""Save a run and continue it exactly: safetensors and JSON, written under a temporary name, the `latest` pointer last."""

import json
import os
import random
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file, save_model
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from rlhf_dialog.chat_agent import AGENT_FILE, AGENT_FORMAT
from rlhf_dialog.config import dump_yaml
from rlhf_dialog.errors import UserError
from rlhf_dialog.lora import merged_state
from rlhf_dialog.models import Policy
from rlhf_dialog.module_files import load_module, save_module
from rlhf_dialog.schema import Config

FORMAT_VERSION = 1
POINTER_REMEDY = "write the name of a checkpoint beside it into it (iter_000004), or remove it"
OWN_KEYS = ("eps", "weight_decay")  # of an optimizer: a resumed run has its own


def save_checkpoint(
    folder: Path,
    config: Config,
    state: dict[str, Any],
    modules: dict[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    best: bool = False,
    random_of_ranks: "Sequence[RandomStates]" = (),
    staged: Path | None = None,
) -> Path:
    """Write `folder`/iter_NNNNNN and point `latest` at it, and `best` too if it is the best so far.

    The newest `keep_checkpoints` and the best one stay, the others go. `state` is JSON with its "iteration";
    `random_of_ranks` the random states of every process, by default of this one alone; the files in `staged` go with it.
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
        generators, python = _merged(random_of_ranks or [random_states()])
        save_file(generators, target / "random.safetensors")
        (target / "config.yaml").write_text(dump_yaml(config), encoding="utf-8")
        write_json(
            target / "trainer.json",
            {"format_version": FORMAT_VERSION, **state, "optimizers": scalars, **python},
        )
    try:
        replace_text(folder / "latest", name)
        if best:
            mark_best(folder, state["iteration"])
        for old in sorted(folder.glob("iter_*"))[: -config.keep_checkpoints]:
            if old != best_checkpoint(folder):
                remove_whole(old)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error}") from error
    return folder / name


def mark_best(folder: Path, iteration: int) -> None:
    """Point `folder`/best at the checkpoint of `iteration`. Raises OSError when it cannot be written."""
    replace_text(folder / "best", f"iter_{iteration:06d}")


def read_state(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The newest checkpoint's folder and its trainer.json; no tensor is read.

    Raises UserError when there is none, when it is damaged or of another format, and when a name in it leads elsewhere.
    """
    source = newest_checkpoint(folder)
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
) -> dict[str, Any]:
    """Restore modules, optimizers and this rank's random states from the newest checkpoint; returns the state as saved.

    Random states are left alone when so many processes are not those that saved it (`world_size_of`).
    Raises UserError when there is none, or when it does not fit.
    """
    source, state = read_state(folder)
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
            _restore_random_states(*_of_rank(rank, load_file(source / "random.safetensors"), state))
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
    return max(folder.glob("iter_[0-9]*"), default=None)


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
    if not re.fullmatch(r"iter_[0-9]+", name):
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


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """Fill a folder under a temporary name: it gets its name when the block ends, and leaves no trace when that fails.

    A folder of that name steps aside as `.name.old` for the moment of the swap; after a kill in it `mend_swaps` brings it
    back. Raises UserError when it cannot be written.
    """
    temporary, old = _hidden(folder, "tmp"), _hidden(folder, "old")
    try:
        _take_back(folder)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            _sync(path)
        if folder.exists():
            folder.rename(old)
        temporary.rename(folder)
        _sync(folder.parent)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: cannot be written: {error}") from error
    finally:
        with suppress(OSError):
            _take_back(folder)
        shutil.rmtree(temporary, ignore_errors=True)


def mend_swaps(parent: Path, names: Iterable[str]) -> None:
    """Take back what a kill interrupted while one of these files or folders was written. Raises OSError."""
    for name in names:
        _take_back(parent / name)
        temporary = _hidden(parent / name, "tmp")
        shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink(missing_ok=True)


def _hidden(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.{ending}")


def _take_back(folder: Path) -> None:
    """The folder that stepped aside gets its name back if no new one has it, and goes if one has."""
    old = _hidden(folder, "old")
    if old.is_dir() and not folder.exists():
        old.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def remove_whole(folder: Path) -> None:
    """Remove a folder so that a kill never leaves a part of it under its name. Raises OSError."""
    temporary = _hidden(folder, "tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    folder.rename(temporary)
    shutil.rmtree(temporary)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def replace_json(path: Path, data: Any) -> None:
    """`write_json` in one atomic step. Raises UserError when the file cannot be written."""
    replace_file(path, json.dumps(data, indent=1) + "\n")


def replace_file(path: Path, text: str) -> None:
    """`replace_text` that makes the folder too. Raises UserError when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error}") from error


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part."""
    temporary = _hidden(path, "tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        _sync(temporary)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


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


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Whatever the block draws, the python, numpy, torch and CUDA generators go on afterwards as if it had not been there."""
    states = random_states()
    try:
        yield
    finally:
        _restore_random_states(*states)


RandomStates = tuple[dict[str, Tensor], dict[str, Any]]  # torch and CUDA; python and numpy as JSON


def random_states() -> RandomStates:
    """The states of all random generators of this process."""
    generators = {"torch": torch.get_rng_state()}
    generators |= {f"cuda.{i}": torch.cuda.get_rng_state(device) for i, device in enumerate(_cuda_devices())}
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    numpy_state = [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    return generators, {"python": [version, list(internal), gauss], "numpy": numpy_state}


def _cuda_devices() -> list[int]:
    """The CUDA devices of this process: with others beside it only its own."""
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.current_device()] if dist.is_initialized() else list(range(torch.cuda.device_count()))


def _restore_random_states(generators: dict[str, Tensor], states: dict[str, Any]) -> None:
    torch.set_rng_state(generators["torch"])
    devices = _cuda_devices()
    for name in generators if devices else ():
        if name.startswith("cuda."):
            torch.cuda.set_rng_state(generators[name], devices[int(name.removeprefix("cuda."))])
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))


def _merged(ranks: Sequence[RandomStates]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The states of all ranks as the tensors of one file and entries of the JSON; rank 0 has the names of a single process."""
    generators = dict(ranks[0][0])
    for rank, (own, _) in enumerate(ranks[1:], 1):
        generators |= {f"rank{rank}.{name}": tensor for name, tensor in own.items()}
    others = {"random_of_other_ranks": [python for _, python in ranks[1:]]} if len(ranks) > 1 else {}
    return generators, {"random": ranks[0][1], **others}


def _of_rank(rank: int, generators: dict[str, Tensor], state: dict[str, Any]) -> RandomStates:
    """The states of one rank from what `_merged` made."""
    if rank == 0:
        return {name: x for name, x in generators.items() if not name.startswith("rank")}, state["random"]
    prefix = f"rank{rank}."
    own = {name.removeprefix(prefix): x for name, x in generators.items() if name.startswith(prefix)}
    return own, state["random_of_other_ranks"][rank - 1]
