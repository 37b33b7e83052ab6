"""Checkpoints of a supervised training: what a killed one goes on from, exactly, and what must not have changed."""

import hashlib
import json
import logging
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import TrainerCallback

from rlhf_dialog.atomic_files import replace_json, sync_folder
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import check_files
from rlhf_dialog.json_files import json_or
from rlhf_dialog.training.supervised.settings import SupervisedKeys

logger = logging.getLogger(__name__)
COMPLETE = "complete.json"
BEGIN_AGAIN = "begin again with --resume never"
DAMAGED = "is damaged: its files are not those that were written"
OTHER_TRAINING = "%s: is of a training with other settings, data or versions, and is not gone on from"
NOT_DECISIVE = {"output", "resume", "checkpoint_minutes", "evaluate_test", "max_report_pairs"}


def folder_of(output: str | Path) -> Path:
    """Where the checkpoints of an unfinished training are: hidden, beside its output."""
    path = Path(output).expanduser().absolute()
    return path.parent / f".{path.name}.unfinished"


def checkpoint_folder(config: Any) -> Path:
    """The folder for the checkpoints of a training, which stay until its output has its name."""
    folder = folder_of(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    if config.resume == "never":
        clear(folder)
    return folder


def clear(folder: Path, but: Path | None = None) -> None:
    """Remove the checkpoints in the folder, but for one."""
    for path in folder.glob("checkpoint-*"):
        if path.is_dir() and path != but:
            shutil.rmtree(path, ignore_errors=True)
        elif path != but:
            path.unlink(missing_ok=True)


def identity_of(config: SupervisedKeys, data: Any) -> str:
    """A hash of what decides a training: settings, the data as JSON, the libraries and the number of their threads."""
    decides = {name: value for name, value in config.model_dump(mode="json").items() if name not in NOT_DECISIVE}
    libraries = [torch.__version__, transformers.__version__, torch.get_num_threads()]
    return hashlib.sha256(json.dumps([decides, libraries, data], sort_keys=True).encode()).hexdigest()


def fingerprint_of(config: SupervisedKeys, versions: dict[str, str]) -> str:
    """A hash of what decides the output of a stage: settings, versions, and every file below a setting that is a path here."""
    settings = config.model_dump(mode="json", exclude={"output", "resume", "checkpoint_minutes"})
    digest = hashlib.sha256(json.dumps([settings, versions], sort_keys=True, default=str).encode())
    for name, value in settings.items():
        is_place = re.search("path|model", name) and isinstance(value, str)  # a separator such as `/` is none
        if is_place and os.path.exists(os.path.expanduser(value)):
            _add_files(digest, Path(value).expanduser())
    return digest.hexdigest()


def compute_seal(folder: Path, identity: Any, step: Any) -> str:
    """The SHA-256 of a checkpoint's files and of what its mark says. Raises OSError."""
    digest = hashlib.sha256(json.dumps([identity, step]).encode())
    _add_files(digest, folder)
    return digest.hexdigest()


def _add_files(digest: Any, path: Path) -> None:
    """Add names and hashes of the files below the path to the digest."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and file.name != COMPLETE:
            with file.open("rb") as opened:
                digest.update(file.name.encode() + hashlib.file_digest(opened, "sha256").digest())


class Checkpoints(TrainerCallback):
    """Asks the library's trainer for a checkpoint every `checkpoint_minutes`, and marks each that is complete.

    Only a marked one is gone on from: a kill while the trainer writes leaves one without a mark.
    """

    def __init__(self, config: SupervisedKeys, folder: Path, identity: str):
        self.folder, self.identity, self.minutes = folder, identity, config.checkpoint_minutes
        self.last = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask, where it is time and the training has not ended."""
        is_due = time.monotonic() - self.last >= 60 * self.minutes
        if is_due and state.global_step < state.max_steps and not control.should_training_stop:
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark the checkpoint, and remove the others."""
        newest = self.folder / f"checkpoint-{state.global_step}"
        sync_folder(newest)
        seal = compute_seal(newest, self.identity, state.global_step)
        replace_json(newest / COMPLETE, {"identity": self.identity, "step": state.global_step, "seal": seal})
        clear(self.folder, but=newest)
        self.last = time.monotonic()

    def newest(self) -> Path | None:
        """The newest undamaged checkpoint of this training; None where there is none. What a kill left half written is removed.

        Raises UserError where the only checkpoints are damaged.
        """
        check_files(self.folder)
        damaged: Path | None = None
        numbered = {int(path.name.rpartition("-")[2]): path for path in self.folder.glob("checkpoint-[0-9]*")}
        for path in (numbered[step] for step in sorted(numbered, reverse=True)):
            mark = json_or(path / COMPLETE, {}, dict)
            if not (path / COMPLETE).exists():
                logger.warning("%s: was not written to its end, so it is removed", path)
                shutil.rmtree(path, ignore_errors=True)
            elif mark.get("seal") != compute_seal(path, mark.get("identity"), mark.get("step")):
                damaged = damaged or path
            elif mark.get("identity") != self.identity:
                logger.warning(OTHER_TRAINING, self.folder)
            else:
                if damaged:
                    logger.warning("%s: %s", damaged, DAMAGED)
                logger.info("goes on after step %s, from %s", mark["step"], path)
                return path
        if damaged:
            raise UserError(DAMAGED, where=str(damaged), remedy=BEGIN_AGAIN)
        return None
