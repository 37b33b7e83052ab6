"""Checkpoints of a supervised training: what a killed one goes on from, exactly, and what must not have changed."""

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.config.schema import MemoryKeys
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import check_files
from rlhf_dialog.json_files import as_read_again, json_or
from rlhf_dialog.training.supervised.settings import SupervisedKeys

logger = logging.getLogger(__name__)
COMPLETE, BEST = "complete.json", "best.safetensors"
BEGIN_AGAIN = "begin again with --resume never"
NOT_DECISIVE = {"output", "resume", "checkpoint_minutes", "evaluate_test"}
# left out at their defaults
NEWER = {"reply_roles", "date_string", "per_device_microbatch_size", *MemoryKeys.model_fields}
Clock = Callable[[], float]


def folder_of(output: str | Path) -> Path:
    """Where the checkpoints of an unfinished training are: hidden, beside its output."""
    path = Path(output).expanduser().absolute()
    return path.parent / f".{path.name}.unfinished"


@contextmanager
def checkpoint_folder(config: Any) -> Iterator[Path]:
    """The folder for the checkpoints of a training, which are removed when the block has ended well."""
    folder = folder_of(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    if config.resume == "never":
        clear(folder)
    yield folder
    clear(folder)


def clear(folder: Path, but: Path | None = None) -> None:
    """Remove the checkpoints in the folder, but for one."""
    for path in folder.glob("checkpoint-*"):
        if path.is_dir() and path != but:
            shutil.rmtree(path, ignore_errors=True)
        elif path != but:
            path.unlink(missing_ok=True)


def identity_of(config: SupervisedKeys, rows: Iterable[Any]) -> str:
    """A hash of what decides a training: settings, what it learns from, the libraries and the number of their threads."""
    decides = {name: value for name, value in config.model_dump(mode="json").items() if name not in NOT_DECISIVE}
    fields = type(config).model_fields  # as in the checkpoints of older versions
    decides = {name: value for name, value in decides.items() if name not in NEWER or value != fields[name].default}
    libraries = [torch.__version__, transformers.__version__, torch.get_num_threads()]
    digest = hashlib.sha256()
    for part in chain([decides, libraries], rows):
        digest.update(json.dumps(part, sort_keys=True).encode())
    return digest.hexdigest()


def compute_seal(folder: Path, mark: dict[str, Any]) -> str:
    """The SHA-256 of a checkpoint's files and of its mark, but for the seal in it. Raises OSError."""
    content = {name: value for name, value in mark.items() if name != "seal"}
    digest = hashlib.sha256(json.dumps(as_read_again(content), sort_keys=True).encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != COMPLETE:
            with path.open("rb") as file:
                digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _is_whole(folder: Path, mark: dict[str, Any]) -> bool:
    """Whether the checkpoint is what was written; one of an earlier version, which has no seal, passes."""
    return "seal" not in mark or bool(mark["seal"] == compute_seal(folder, mark))


class Watch(Protocol):
    """What a training keeps beside its model: numbers that JSON can hold, and tensors."""

    def state(self) -> dict[str, Any]:
        """The numbers."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors; none where there is nothing to keep."""

    def restore(self, state: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Take both back."""


class SaveTimer:
    """Whether it is time for a checkpoint: `minutes` after the beginning, or after the last one."""

    def __init__(self, minutes: float, clock: Clock = time.monotonic):
        self.seconds, self.clock, self.last = 60 * minutes, clock, clock()

    def now(self) -> bool:
        """Whether it is."""
        return self.clock() - self.last >= self.seconds

    def done(self) -> None:
        """A checkpoint has been written."""
        self.last = self.clock()


class Checkpoints(TrainerCallback):
    """Asks the library's trainer for a checkpoint every `checkpoint_minutes`, and marks each that is complete.

    Only a marked one is gone on from: a kill while the trainer writes leaves one without a mark.
    """

    def __init__(self, config: SupervisedKeys, folder: Path, identity: str, watch: Watch | None = None):
        self.folder, self.identity, self.watch = folder, identity, watch
        self.due = SaveTimer(config.checkpoint_minutes)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask, where it is time and the training has not ended."""
        if self.due.now() and state.global_step < state.max_steps:
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark the checkpoint, and remove the others."""
        newest = self.folder / f"checkpoint-{state.global_step}"
        if self.watch and (tensors := self.watch.tensors()):
            save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, newest / BEST)
        kept = self.watch.state() if self.watch else {}
        mark = {"identity": self.identity, "step": state.global_step, "watch": kept}
        replace_json(newest / COMPLETE, mark | {"seal": compute_seal(newest, mark)})
        clear(self.folder, but=newest)
        self.due.done()

    def newest(self) -> Path | None:
        """The newest undamaged checkpoint, with what `watch` had; None where there is none of this training.

        Raises UserError where all of them are damaged.
        """
        check_files(self.folder)
        marked = [(path, json_or(path / COMPLETE, {}, dict)) for path in self.folder.glob("checkpoint-*")]
        usable = [(path, mark) for path, mark in marked if mark.get("identity") == self.identity]
        if not usable:
            if any(mark for _, mark in marked):
                text = "%s: is of a training with other settings, data or versions, and is not gone on from"
                logger.warning(text, self.folder)
            return None
        whole = [(int(mark["step"]), path, mark) for path, mark in usable if _is_whole(path, mark)]
        for path in {path for path, _ in usable} - {path for _, path, _ in whole}:
            what = "is damaged: its files are not those that were written"
            if not whole:
                raise UserError(what, where=str(path), remedy=BEGIN_AGAIN)
            logger.warning("%s: %s", path, what)
        step, path, mark = max(whole, key=lambda one: one[0])
        if self.watch:
            tensors = load_file(path / BEST) if (path / BEST).is_file() else {}
            self.watch.restore(mark["watch"], tensors)
        logger.info("goes on after step %d, from %s", step, path)
        return path
