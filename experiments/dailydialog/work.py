"""What all stages share: the data, the size, the folders of the stages, and what was decided when the work began."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel

from experiments.dailydialog.calls import cores
from experiments.dailydialog.sizes import MODEL, SIZES, SMOLLM2, Keys, Size
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import read_json

PLAN = "plan.json"


class Plan(BaseModel):
    """What is decided once. reduced: half of the tokens, and one seed of each way of PPO."""

    size: str
    data: str
    model: str | None
    use_amp: bool
    reduced: bool
    processor: str
    cores: int


@dataclass
class Work:
    """One data set in one folder. A stage's result that is there is not made again.

    `chat_model`: the folder with which the pretrained sizes begin; None: the one of --fetched.
    """

    data: Path
    root: Path
    size_name: str
    fetched: Path | None
    chat_model: Path | None = None

    @property
    def size(self) -> Size:
        return SIZES[self.size_name]

    @cached_property
    def plan(self) -> Plan:
        """The plan of the folder, written when there is none. Raises UserError for one of another size, data set or model."""
        path, found = self.root / PLAN, self._new_plan()
        if not path.is_file():
            replace_json(path, found.model_dump())
        stored = Plan(**read_json(path, end="; name another folder", shape=Plan))
        for name in ("size", "data", "model"):
            was, now = getattr(stored, name), getattr(found, name)
            if was != now:
                raise UserError(
                    f"--work: '{self.root}' has a run with another {name} ({was}, now {now}); name another folder"
                )
        return stored

    def _new_plan(self) -> Plan:
        import torch

        from rlhf_dialog.commands.doctor import processor
        from rlhf_dialog.models.device import cpu_bfloat16

        use_amp = torch.cuda.is_available() or bool(cpu_bfloat16())
        return Plan(
            size=self.size_name,
            data=fingerprint_of(self.data),
            model=fingerprint_of(self.start(MODEL)) if self.size.pretrained else None,
            use_amp=use_amp,
            reduced=self.size.pretrained and not (use_amp or self.size.always_whole),
            processor=processor(),
            cores=cores(),
        )

    @property
    def tokens(self) -> int:
        """That a run of PPO generates."""
        return self.size.tokens // (2 if self.plan.reduced else 1)

    @property
    def setting_tokens(self) -> int:
        return self.size.setting_tokens // (2 if self.plan.reduced else 1)

    @property
    def validation_prompts(self) -> int:
        return self.size.validation_prompts // (2 if self.plan.reduced else 1)

    def start(self, name: str) -> Path:
        """The folder with which a training begins: that of --model, or one of --fetched. Raises UserError where it is missing."""
        if name == MODEL and self.chat_model:
            return self.chat_model
        folder = self.pretrained(SMOLLM2 if name == MODEL else name)
        if folder is None:
            raise UserError(
                f"--fetched: '{self.fetched}' has no {name}; fetch it with python -m experiments.smollm2 fetch"
            )
        return folder

    @property
    def dialogues(self) -> Path:
        """Whole dialogues in other forms, of which the pretrained sizes learn."""
        return self.root / "dialogues"

    def folder(self, stage: str) -> Path:
        return self.root / stage

    def model(self, stage: str) -> Path:
        """The model that a stage of one model has trained."""
        return self.folder(stage) / "model"

    def small(self, stage: str) -> Keys:
        return self.size.small.get(stage, {})

    def pretrained(self, name: str) -> Path | None:
        """The folder of a model of --fetched, if it is there."""
        folder = self.fetched and self.fetched / name
        return folder if folder and folder.is_dir() else None


def fingerprint_of(*folders: Path) -> str:
    """A hash of the names and contents of all files below these folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name = path.relative_to(folder).as_posix()
                digest.update(f"{name}:{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]
