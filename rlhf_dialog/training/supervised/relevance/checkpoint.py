"""The checkpoint of a relevance model's training: the members so far, and how far the one at work is."""

import logging
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_dialog.atomic_files import atomic_file
from rlhf_dialog.json_files import damage_as_user_error
from rlhf_dialog.training.supervised.checkpoints import BEGIN_AGAIN, SaveTimer

logger = logging.getLogger(__name__)
FILE = "checkpoint-members.pt"


@dataclass
class RelevanceProgress:
    """How far a member is: the steps that it has done, and the rows that are left of its epoch; `optimizer` has its state."""

    member: int = 0
    step: int = 0
    order: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    optimizer: dict[str, Any] | None = None
    schedule: dict[str, Any] | None = None
    random: Tensor | None = None


class MembersCheckpoint:
    """Writes the checkpoint when it is time, and reads that of a killed training of the same `identity`.

    It is this program's own file, and is read with `weights_only=True`.
    """

    def __init__(self, model: nn.Module, folder: Path, identity: str, due: SaveTimer):
        self.model, self.path, self.identity, self.due = model, folder / FILE, identity, due

    def save(self, progress: RelevanceProgress) -> None:
        """Write it whole, in place of the one before."""
        with atomic_file(self.path) as beside:
            torch.save(
                {"identity": self.identity, "model": self.model.state_dict(), "progress": vars(progress)}, beside
            )
        self.due.done()

    def restore(self) -> RelevanceProgress:
        """Where the training goes on, with the model as it was there; the beginning where there is no such checkpoint."""
        if not self.path.is_file():
            return RelevanceProgress()
        with damage_as_user_error(f"{self.path}: is damaged: ", f"; {BEGIN_AGAIN}", faults=(Exception,)):
            with zipfile.ZipFile(self.path) as archive:
                if changed := archive.testzip():  # torch does not compare the sums
                    raise ValueError(f"{changed} is not what was written")
            saved = torch.load(self.path, map_location="cpu", weights_only=True)
            if saved["identity"] != self.identity:
                text = "%s: is of a training with other settings, data or versions, and is not gone on from"
                logger.warning(text, self.path)
                return RelevanceProgress()
            self.model.load_state_dict(saved["model"])
            progress = RelevanceProgress(**saved["progress"])
        logger.info("goes on in member %d after step %d, from %s", progress.member + 1, progress.step, self.path)
        return progress
