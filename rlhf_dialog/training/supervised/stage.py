"""The frame of the supervised stages. What a stage has of its own is in its class; `train` says when each part is called."""

import hashlib
import json
import logging
import math
import random
import warnings
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from datasets import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.learned_half import KEY as HALF_KEY
from rlhf_dialog.data.learned_half import LearnedHalf
from rlhf_dialog.data.prompts import Prompts
from rlhf_dialog.data.sources import load_records
from rlhf_dialog.data.split_halves import divide
from rlhf_dialog.distributed.runtime import keep_freed_memory
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import load_json
from rlhf_dialog.models.cpu_linear import use_onednn
from rlhf_dialog.models.device import choose_device
from rlhf_dialog.models.precision import precision_of, set_float32_products, without_tf32
from rlhf_dialog.terminal import TimeLeft
from rlhf_dialog.training.supervised.checkpoints import Checkpoints, checkpoint_folder, identity_of
from rlhf_dialog.training.supervised.settings import SupervisedKeys

logger = logging.getLogger(__name__)
Keys = TypeVar("Keys", bound=SupervisedKeys)
T = TypeVar("T")
UNLOGGED = "unlogged_loss.json"  # in a checkpoint: the sum of the losses since the last one that was logged
MOST_KEPT = 4096  # examples of a training that stay encoded
POOL = 50  # batches that are sorted by length together


def drawn(items: Sequence[T], limit: int | None, seed: int) -> Sequence[T]:
    """At most `limit` of the items, drawn by `seed`."""
    return items if limit is None or limit >= len(items) else random.Random(seed).sample(items, limit)


def answered(prompt: Dialogue) -> Dialogue:
    """The prompt with its true reply as `response`."""
    return replace(prompt, response=prompt.reference or "")


class SupervisedStage(ABC, Generic[Keys]):
    """One training, from its data to a folder that loads; `report` gets one line for each thing that is read or made."""

    report_file: ClassVar[str] = "report.json"
    training: Any
    held_out: Any
    model: Any
    tokenizer: Any

    def __init__(self, config: Keys, folder: Path, report: Callable[[str], None]) -> None:
        self.config, self.folder, self.report = config, folder, report

    def train(self) -> dict[str, Any]:
        """Write the trained model into `folder`; returns its report. Raises UserError when data or model do not fit."""
        set_float32_products(self.config, torch.device(choose_device(self.config.device)))
        if self.config.pytorch_threads:
            torch.set_num_threads(self.config.pytorch_threads)
        keep_freed_memory()
        set_seed(self.config.seed)
        self.training, self.held_out = self.read()
        self.model, self.tokenizer = self.start()
        self.num_parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.report(
            f"{self.num_parameters / 1e6:.2f} million parameters, {len(self.tokenizer)} tokens in the vocabulary"
        )
        self.learn()
        self.save()
        with without_tf32():
            return self.measure()

    @abstractmethod
    def read(self) -> tuple[Sequence[Any], Any]:
        """What the model learns from, and what is held out for its report."""

    @abstractmethod
    def start(self) -> tuple[Any, Any]:
        """The model and tokenizer to begin with."""

    @abstractmethod
    def learn(self) -> None:
        """Train the model in place."""

    def run_trainer(
        self,
        rows: "Encoded",
        trainer: Callable[..., Trainer],
        arguments: type[TrainingArguments],
        restore: Callable[[Path], None] = lambda checkpoint: None,
        **of_its_own: Any,
    ) -> Trainer:
        """Train the model on the `rows` with a trainer of the library; it ends in eval mode.

        A killed training of the same rows goes on from its newest checkpoint, as `resume` says; `restore` takes back what the
        trainer's own callbacks wrote into it. `of_its_own` are those of its `arguments` that other trainers do not have.
        Raises UserError for a damaged checkpoint.
        """
        order = batch_order(rows.lengths, self.config)
        folder = checkpoint_folder(self.config)
        checkpoints = Checkpoints(self.config, folder, identity_of(self.config, rows.fingerprint))
        config, device = self.config, torch.device(choose_device(self.config.device))
        options: dict[str, Any] = {
            "output_dir": str(folder),
            "max_steps": num_steps(config, len(rows)),
            "train_sampling_strategy": "sequential",  # of a data set that is in the order of `batch_order`
            "learning_rate": config.learning_rate,
            "lr_scheduler_type": "cosine",
            "warmup_steps": config.warmup_ratio,
            "weight_decay": config.weight_decay,
            "per_device_train_batch_size": config.batch_size,
            "seed": config.seed,
            "use_cpu": device.type == "cpu",
            "bf16": precision_of(config, device) == "bf16",
            "gradient_checkpointing": False,
            "save_strategy": "no",
            "logging_steps": 0.05,
            "dataloader_pin_memory": torch.cuda.is_available(),
            "report_to": "none",
            "disable_tqdm": True,
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`gradient_checkpointing` is deprecated", FutureWarning)
            args = for_one_gpu(arguments)(**options | of_its_own)
            first = Dataset.from_list([rows[0]])  # that of trl takes no other kind, and looks at its columns
            made = trainer(model=self.model, args=args, train_dataset=first, processing_class=self.tokenizer)
            made.train_dataset = torch.utils.data.Subset(rows, order)
        use_onednn(made.model)  # type: ignore[arg-type]
        made.remove_callback(PrinterCallback)
        newest = checkpoints.newest()
        made.add_callback(LossLines(made, newest))
        made.add_callback(checkpoints)  # the last one, so that it seals what the others wrote
        if newest:
            restore(newest)
        made.train(resume_from_checkpoint=str(newest) if newest else None)
        self.model.eval()
        return made

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
    learned_half: LearnedHalf | None = None

    def read(self) -> tuple[Prompts, dict[str, Prompts]]:
        """The pairs of the train split whose dialogue is in the half, and those of each split that is measured."""
        config, training = self.config, self.pairs("train")
        if config.half != "all":
            halves = divide(load_records(config.data_path, "train", config.columns, config.split, quiet=True))
            training = training.select(np.array([part == config.half for part in halves.parts])[training.dialogues])
            if not training:
                raise UserError(
                    f"half: no pair of turns of '{config.data_path}' is in the {config.half}'s half of the train split; use "
                    "half: all, or more data"
                )
            self.report(f"train: {len(training)} of them are in the {config.half}'s half of the dialogues")
            self.learned_half = LearnedHalf(halves.assignment, config.half)
        splits = ["validation", "test"] if config.evaluate_test else ["validation"]
        return training, {split: self.pairs(split) for split in splits}

    @abstractmethod
    def pairs(self, split: str) -> Prompts:
        """The prompts of a split that have a true reply."""

    def measure(self) -> dict[str, Any]:
        results: dict[str, Any] = {split: self.measure_split(pairs) for split, pairs in self.held_out.items()}
        half = asdict(self.learned_half) if self.learned_half else None
        counts = {"num_train_pairs": len(self.training), "num_parameters": self.num_parameters}
        return results | counts | {HALF_KEY: half}

    @abstractmethod
    def measure_split(self, pairs: Prompts) -> dict[str, Any]:
        """What the model in the folder is worth on the pairs."""

    def page(self, report: dict[str, Any]) -> str:
        return "\n".join(self.page_of_split(split, report[split]) for split in self.held_out)


class Encoded(torch.utils.data.Dataset[dict[str, Any]]):
    """Examples as token ids, each encoded when it is drawn; the newest are kept.

    lengths: of all examples, in tokens; fingerprint: a hash of all of them
    """

    def __init__(self, items: Sequence[T], encode: Callable[[T], dict[str, Any]]):
        self.items, self.encode, self.lengths = items, encode, array("I")
        digest = hashlib.sha256()
        for row in self.rows():
            self.lengths.append(row["length"])
            digest.update(json.dumps(row, sort_keys=True).encode())
        self.fingerprint = digest.hexdigest()
        self._draw = lru_cache(maxsize=MOST_KEPT)(self.row)

    def rows(self) -> Iterator[dict[str, Any]]:
        """All examples in order."""
        return map(self.encode, self.items)

    def row(self, number: int) -> dict[str, Any]:
        """One of them."""
        return self.encode(self.items[number])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self._draw(number)


def for_one_gpu(arguments: type[TrainingArguments]) -> type[TrainingArguments]:
    """These arguments for a Trainer that takes one GPU: a process that sees several would split larger batches among them.

    In a checkpoint, which has them as a pickle that nothing here reads, they are a plain dictionary.
    """
    return type(arguments.__name__, (arguments,), {"n_gpu": 1, "__reduce__": lambda self: (dict, (self.to_dict(),))})


def num_steps(config: SupervisedKeys, num_examples: int) -> int:
    """Optimizer steps of the whole training, at least one."""
    return config.max_steps or max(1, round(config.epochs * num_examples / config.batch_size))


def batch_order(lengths: Sequence[int], config: SupervisedKeys) -> list[int]:
    """Positions of the examples of all steps in order, in batches of similar length.

    The shuffled epochs are joined into one sequence; 50 batches at a time (at most an epoch) are sorted by length and cut,
    and the batches are shuffled. (The Trainer's own group_by_length always puts the longest examples first.)
    """
    rng = np.random.default_rng(config.seed)
    total = num_steps(config, len(lengths)) * config.batch_size
    pool = min(POOL, max(1, len(lengths) // config.batch_size)) * config.batch_size
    num_epochs = math.ceil(total / len(lengths))
    stream = np.concatenate([rng.permutation(len(lengths)) for _ in range(num_epochs)])[:total]
    order: list[int] = []
    for start in range(0, total, pool):
        similar = sorted(stream[start : start + pool].tolist(), key=lambda i: lengths[i])
        cuts = rng.permutation(len(similar) // config.batch_size) * config.batch_size
        order += [position for cut in cuts for position in similar[cut : cut + config.batch_size]]
    return order


class LossLines(TrainerCallback):
    """Logs the loss, with the time that is left, as often as the trainer does, and keeps the sum of the steps since then in
    checkpoints, so that the losses of a resumed training are those of one that was not interrupted."""

    def __init__(self, trainer: Any, source: Path | None):
        """`source`: the checkpoint that the trainer goes on from."""
        self.trainer, self.source, self.left = trainer, source, TimeLeft()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.source and (path := self.source / UNLOGGED).is_file():
            kept = load_json(path)
            self.trainer._globalstep_last_logged = kept["since"]
            self.trainer._tr_loss.fill_(kept["sum"])

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        kept = {"since": self.trainer._globalstep_last_logged, "sum": float(self.trainer._tr_loss)}
        write_json(Path(args.output_dir) / f"checkpoint-{state.global_step}" / UNLOGGED, kept)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.left.first is None:
            self.left.text(state.global_step / state.max_steps)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            left = self.left.text(state.global_step / state.max_steps)
            more = f", {left}" if left else ""
            logger.info("step %d of %d: loss %.3f%s", state.global_step, state.max_steps, float(logs["loss"]), more)
