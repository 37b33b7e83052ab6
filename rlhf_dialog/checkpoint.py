"""Save a run and continue it exactly: safetensors and JSON, written under a temporary name, the `latest` pointer last."""

import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from rlhf_dialog.config import dump_yaml
from rlhf_dialog.errors import UserError
from rlhf_dialog.models import Policy
from rlhf_dialog.schema import Config

FORMAT_VERSION = 1
AGENT_FILE = "rlhf_dialog.json"


def save_checkpoint(
    folder: Path,
    config: Config,
    state: dict[str, Any],
    modules: dict[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    best: bool = False,
) -> Path:
    """Write `folder`/iter_NNNNNN and point `latest` at it, and `best` too if it is the best so far.

    The newest `keep_checkpoints` and the best one stay, the others go. `state` is JSON with its "iteration".
    Raises UserError when the folder cannot be written; what was there stays whole.
    """
    name = f"iter_{state['iteration']:06d}"
    with written_whole(folder / name) as target:
        for key, module in modules.items():
            save_model(module, str(target / f"{key}.safetensors"))
        scalars = {}
        for key, optimizer in optimizers.items():
            tensors, scalars[key] = _split(optimizer.state_dict())
            save_file(tensors, target / f"{key}_optimizer.safetensors")
        generators, python = _random_states()
        save_file(generators, target / "random.safetensors")
        (target / "config.yaml").write_text(dump_yaml(config), encoding="utf-8")
        write_json(
            target / "trainer.json",
            {"format_version": FORMAT_VERSION, **state, "optimizers": scalars, "random": python},
        )
    try:
        replace_text(folder / "latest", name)
        if best:
            mark_best(folder, state["iteration"])
        for old in sorted(folder.glob("iter_*"))[: -config.keep_checkpoints]:
            if old != best_checkpoint(folder):
                shutil.rmtree(old)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error}") from error
    return folder / name


def mark_best(folder: Path, iteration: int) -> None:
    """Point `folder`/best at the checkpoint of `iteration`. Raises OSError when it cannot be written."""
    replace_text(folder / "best", f"iter_{iteration:06d}")


def load_checkpoint(
    folder: Path, modules: dict[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer], device: torch.device
) -> dict[str, Any]:
    """Restore modules, optimizers and random states from the checkpoint that `latest` names; returns the state as saved.

    Raises UserError when there is none, or when it does not fit.
    """
    source = latest_checkpoint(folder)
    try:
        state = json.loads((source / "trainer.json").read_text(encoding="utf-8"))
        if state["format_version"] != FORMAT_VERSION:
            raise UserError(
                f"{source}: has format version {state['format_version']}, this program reads {FORMAT_VERSION}"
            )
        saved, ours = set(state["optimizers"]), set(optimizers)
        if saved != ours:
            raise UserError(f"{source}: was saved with optimizers of {sorted(saved)}, this run has {sorted(ours)}")
        for key, module in modules.items():
            load_model(module, str(source / f"{key}.safetensors"), device=str(device))
        for key, optimizer in optimizers.items():
            tensors = load_file(source / f"{key}_optimizer.safetensors")
            optimizer.load_state_dict(_join(tensors, state["optimizers"][key]))
        _restore_random_states(load_file(source / "random.safetensors"), state["random"])
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"{source}: is damaged or does not fit this run: {type(error).__name__}: {error}") from error
    return state


def latest_checkpoint(folder: Path) -> Path:
    """The folder of the newest whole checkpoint. Raises UserError when there is none."""
    pointer = folder / "latest"
    if not pointer.is_file():
        raise UserError(f"{folder}: holds no checkpoint to resume from; start without --resume")
    return folder / Path(pointer.read_text(encoding="utf-8").strip()).name


def best_checkpoint(folder: Path) -> Path | None:
    """The folder that the pointer `best` names; None where no evaluation has chosen one."""
    pointer = folder / "best"
    return folder / Path(pointer.read_text(encoding="utf-8").strip()).name if pointer.is_file() else None


def save_agent(folder: Path, policy: Policy, tokenizer: PreTrainedTokenizerBase, config: Config) -> None:
    """Write the trained agent: a folder for `AutoModelForCausalLM.from_pretrained`, the value head and our settings beside it."""
    with written_whole(folder) as target:
        policy.lm.save_pretrained(target)
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
        write_json(target / AGENT_FILE, {"format_version": FORMAT_VERSION, **settings})


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """Fill a folder under a temporary name: it gets its name when the block ends, and leaves no trace when that fails.

    Raises UserError when it cannot be written.
    """
    temporary, old = folder.with_name(f".{folder.name}.tmp"), folder.with_name(f".{folder.name}.old")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            _sync(path)
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        temporary.rename(folder)
        _sync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: cannot be written: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    _sync(temporary)
    temporary.replace(path)
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
    generators, states = _random_states()
    try:
        yield
    finally:
        _restore_random_states(generators, states)


def _random_states() -> tuple[dict[str, Tensor], dict[str, Any]]:
    generators = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        generators |= {f"cuda.{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    numpy_state = [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    return generators, {"python": [version, list(internal), gauss], "numpy": numpy_state}


def _restore_random_states(generators: dict[str, Tensor], states: dict[str, Any]) -> None:
    torch.set_rng_state(generators["torch"])
    if torch.cuda.is_available():
        cuda = [generators[name] for name in sorted(generators) if name.startswith("cuda.")]
        torch.cuda.set_rng_state_all(cuda)
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
