"""What all stages share: the data, the folder of each stage, the size, and what was estimated."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.dailydialog import jobs
from experiments.dailydialog.jobs import Ended, Job
from experiments.dailydialog.record import done, fingerprint_of, versions
from experiments.dailydialog.sizes import MINILM, MODEL, SIZES, SMOLLM2, Keys, Size
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import read_json

ESTIMATE = "estimate"
SIDE_BY_SIDE = 2  # processes, one core each


@dataclass
class Scene:
    """One data set in one folder. `minute`: gets the share of a stage that is done, about once a minute.

    `chat_model`: the folder with which the pretrained sizes begin; None: the one of --fetched.
    """

    data: Path
    work: Path
    size_name: str
    fetched: Path | None
    minute: Callable[[float], None]
    chat_model: Path | None = None

    @property
    def size(self) -> Size:
        return SIZES[self.size_name]

    @cached_property
    def data_hash(self) -> str:
        return fingerprint_of(self.data)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """What `estimate` has found: epochs, use_amp, tokens, minutes. Raises UserError where it is not done."""
        folder = self.folder(ESTIMATE)
        done(folder)
        tree: dict[str, Any] = read_json(folder / "estimate.json", end=f"; begin again with --again {ESTIMATE}")
        return tree

    @cached_property
    def model_hash(self) -> str:
        return fingerprint_of(self.start(MODEL))

    def start(self, name: str) -> Path:
        """The folder with which a training begins: that of --model, or one of --fetched. Raises UserError where it is missing."""
        folder = (
            self.chat_model
            if name == MODEL and self.chat_model
            else self.pretrained(SMOLLM2 if name == MODEL else name)
        )
        if folder is None:
            raise UserError(
                f"--fetched: '{self.fetched}' has no {name}; fetch it with python -m experiments.smollm2 fetch"
            )
        return folder

    @property
    def dialogues(self) -> Path:
        """Whole dialogues in other forms, of which the pretrained sizes learn."""
        return self.folder(ESTIMATE) / "dialogues"

    def folder(self, stage: str) -> Path:
        return self.work / stage

    def model(self, stage: str) -> Path:
        """The model that a stage of one model has trained."""
        return self.folder(stage) / "model"

    def small(self, stage: str) -> Keys:
        return self.size.small.get(stage, {})

    def pretrained(self, name: str) -> Path | None:
        """The folder of a model of --fetched, if it is there."""
        folder = self.fetched and self.fetched / name
        return folder if folder and folder.is_dir() else None

    def common(self) -> dict[str, Any]:
        """What decides every stage."""
        found = {"size": self.size_name, "data": self.data_hash, "versions": versions()}
        return found | ({"model": self.model_hash} if self.size.pretrained else {})

    def judges(self) -> dict[str, bool]:
        """Which pretrained judges are there."""
        return {name: self.pretrained(name) is not None for name in (SMOLLM2, MINILM)}

    def run(self, some: Sequence[Job], side_by_side: bool = False) -> dict[str, Ended]:
        """Run the jobs, two at once with a core each if asked, where there are two. Raises UserError for one that fails."""
        at_once = min(SIDE_BY_SIDE, cores()) if side_by_side else 1
        return jobs.run_jobs(some, at_once, 1 if at_once > 1 else None, self.minute)


def cores() -> int:
    """The processor's cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start
