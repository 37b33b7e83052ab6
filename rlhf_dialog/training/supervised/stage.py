"""The frame of the supervised stages. What a stage has of its own is in its class; `train` says when each part is called."""

import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from datasets import Dataset
from transformers import Trainer, TrainingArguments

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.learned_half import KEY as HALF_KEY
from rlhf_dialog.data.learned_half import Half, LearnedHalf
from rlhf_dialog.data.sources import NO_COLUMNS, load_records
from rlhf_dialog.data.sources.columns import Columns
from rlhf_dialog.data.sources.splits import NO_NAMES, SplitNames
from rlhf_dialog.data.split_halves import divide
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.precision import without_tf32
from rlhf_dialog.training.supervised import hugging_face_trainer as trainers
from rlhf_dialog.training.supervised.checkpoints import Checkpoints, Watch, checkpoint_folder, identity_of
from rlhf_dialog.training.supervised.settings import SupervisedKeys

Keys = TypeVar("Keys", bound=SupervisedKeys)
T = TypeVar("T")


def drawn(items: list[T], limit: int | None, seed: int) -> list[T]:
    """At most `limit` of the items, drawn by `seed`."""
    return items if limit is None or limit >= len(items) else random.Random(seed).sample(items, limit)


def of_half(
    pairs: list[Dialogue],
    half: Half,
    data_path: str,
    report: Callable[[str], None],
    columns: Columns = NO_COLUMNS,
    names: SplitNames = NO_NAMES,
) -> tuple[list[Dialogue], LearnedHalf | None]:
    """Those pairs of the train split whose dialogue is in the half, and what the report of a model says of it.

    All pairs, and None, for `all`. Raises UserError when the half has no pair.
    """
    if half == "all":
        return pairs, None
    halves = divide(load_records(data_path, "train", columns, names, quiet=True))
    chosen = [pair for pair in pairs if halves.parts[pair.meta["dialogue"]] == half]
    if not chosen:
        raise UserError(
            f"half: no pair of turns of '{data_path}' is in the {half}'s half of the train split; use half: all, or more data"
        )
    report(f"train: {len(chosen)} of them are in the {half}'s half of the dialogues")
    return chosen, LearnedHalf(halves.assignment, half)


class SupervisedStage(ABC, Generic[Keys]):
    """One training, from its data to a folder that loads; `report` gets one line for each thing that is read or made."""

    schema: ClassVar[type[SupervisedKeys]]
    packages: ClassVar[tuple[str, ...]] = ("rlhf-dialog", "torch", "transformers", "trl", "tokenizers", "datasets")
    report_file: ClassVar[str] = "report.json"
    training: list[Any]
    held_out: Any
    model: Any
    tokenizer: Any

    def __init__(self, config: Keys, folder: Path, report: Callable[[str], None]) -> None:
        self.config, self.folder, self.report = config, folder, report

    def train(self) -> dict[str, Any]:
        """Write the trained model into `folder`; returns its report. Raises UserError when data or model do not fit."""
        trainers.prepare(self.config)
        self.training, self.held_out = self.read()
        self.model, self.tokenizer = self.start()
        self.num_parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.report(f"{self.num_parameters / 1e6:.2f} million parameters{self.size()}")
        self.learn()
        self.save()
        with without_tf32():
            return self.measure()

    @abstractmethod
    def read(self) -> tuple[list[Any], Any]:
        """What the model learns from, and what is held out for its report."""

    @abstractmethod
    def start(self) -> tuple[Any, Any]:
        """The model and tokenizer to begin with."""

    def size(self) -> str:
        """What is said of the model behind the number of its parameters."""
        return f", {len(self.tokenizer)} tokens in the vocabulary"

    @abstractmethod
    def learn(self) -> None:
        """Train the model in place."""

    def run_trainer(
        self,
        rows: list[dict[str, Any]],
        trainer: Callable[..., Trainer],
        arguments: type[TrainingArguments],
        watch: Watch | None = None,
        **of_its_own: Any,
    ) -> None:
        """Train the model on the `rows` (each with its `length`) with a trainer of the library; it ends in eval mode.

        A killed training of the same rows goes on from its newest checkpoint, as `resume` says, with what `watch` had then.
        `of_its_own` are those of its `arguments` that other trainers do not have.
        """
        order = trainers.batch_order([row["length"] for row in rows], self.config)
        identity = identity_of(self.config, rows)
        folder = checkpoint_folder(self.config)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`gradient_checkpointing` is deprecated", FutureWarning)
            options = trainers.trainer_arguments(self.config, str(folder), len(rows)) | of_its_own
            args, dataset = trainers.for_one_gpu(arguments)(**options), Dataset.from_list(rows).select(order)
            made = trainer(model=self.model, args=args, train_dataset=dataset, processing_class=self.tokenizer)
            trainers.train_quietly(made, Checkpoints(self.config, folder, identity, watch))
        self.model.eval()

    def save(self) -> None:
        """Write model and tokenizer into the folder."""
        self.model.save_pretrained(self.folder)
        self.tokenizer.save_pretrained(self.folder)

    @abstractmethod
    def measure(self) -> dict[str, Any]:
        """The report: what the model in the folder is worth, and counts."""

    def page(self, report: dict[str, Any]) -> str:
        """The report as Markdown; empty for a stage without one."""
        return ""


class StageOfHalves(SupervisedStage[Any]):
    """A stage that learns from a half of the training dialogues, or all, and measures each split that is held out."""

    page_of_split: Callable[[str, dict[str, Any]], str]
    learned_half: LearnedHalf | None

    def read(self) -> tuple[list[Dialogue], dict[str, list[Dialogue]]]:
        splits = ["validation", "test"] if self.config.evaluate_test else ["validation"]
        config = self.config
        training, self.learned_half = of_half(
            self.pairs("train"), config.half, config.data_path, self.report, config.columns, config.split
        )
        return training, {split: self.pairs(split) for split in splits}

    @abstractmethod
    def pairs(self, split: str) -> list[Dialogue]:
        """The prompts of a split, each with its true reply as `response`."""

    def measure(self) -> dict[str, Any]:
        results: dict[str, Any] = {split: self.measure_split(pairs) for split, pairs in self.held_out.items()}
        half = asdict(self.learned_half) if self.learned_half else None
        counts = {"num_train_pairs": len(self.training), "num_parameters": self.num_parameters}
        return results | counts | {HALF_KEY: half}

    @abstractmethod
    def measure_split(self, pairs: list[Dialogue]) -> dict[str, Any]:
        """What the model in the folder is worth on the pairs."""

    def page(self, report: dict[str, Any]) -> str:
        return "\n".join(self.page_of_split(split, report[split]) for split in self.held_out)
