"""Shared by the supervised training of policies and classifiers: keys, Trainer arguments, batches of similar length."""

import logging
import math
import sys
from typing import Any

import numpy as np
import torch
from transformers import ProgressCallback, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

from rlhf_dialog.distributed.runtime import keep_freed_memory
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.cpu_linear import use_onednn
from rlhf_dialog.models.device import choose_device
from rlhf_dialog.models.part_sizes import lacks_memory
from rlhf_dialog.models.precision import precision_of, set_float32_products
from rlhf_dialog.terminal import TimeLeft
from rlhf_dialog.training.supervised.checkpoints import BEGIN_AGAIN, Checkpoints
from rlhf_dialog.training.supervised.settings import SupervisedKeys

logger = logging.getLogger(__name__)
POOL = 50  # batches that are sorted by length together


def prepare(config: SupervisedKeys) -> None:
    """Set seeds, threads, memory options and float32 products. Raises UserError when the device is not available."""
    set_float32_products(config, torch.device(choose_device(config.device)))
    if config.pytorch_threads:
        torch.set_num_threads(config.pytorch_threads)
    keep_freed_memory()
    set_seed(config.seed)


def trainer_arguments(config: SupervisedKeys, scratch: str, num_examples: int) -> dict[str, Any]:
    """Keyword arguments for TrainingArguments: one pass over a data set that is in the order of `batch_order`."""
    device = torch.device(choose_device(config.device))
    return {
        "output_dir": scratch,
        "max_steps": num_steps(config, num_examples),
        "train_sampling_strategy": "sequential",
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
    }


def for_one_gpu(arguments: type[TrainingArguments]) -> type[TrainingArguments]:
    """These arguments for a Trainer that takes one GPU: a process that sees several would split larger batches among them.

    In a checkpoint, which has them as a pickle that nothing here reads, they are a plain dictionary.
    """
    return type(arguments.__name__, (arguments,), {"n_gpu": 1, "__reduce__": lambda self: (dict, (self.to_dict(),))})


def num_steps(config: SupervisedKeys, num_examples: int) -> int:
    """Optimizer steps of the whole training, at least one."""
    return config.max_steps or max(1, round(config.epochs * num_examples / config.batch_size))


def batch_order(lengths: list[int], config: SupervisedKeys) -> list[int]:
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


def train_quietly(trainer: Trainer, checkpoints: Checkpoints) -> None:
    """`trainer.train()` with one plain line per logged loss, and a progress bar on a terminal; from the newest checkpoint."""
    use_onednn(trainer.model)  # type: ignore[arg-type]
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    lines = _LossLines()
    trainer.add_callback(lines)
    if sys.stderr.isatty():
        trainer.add_callback(_Bar())
    trainer.add_callback(checkpoints)  # the last one, so that it keeps what the others noted
    newest = checkpoints.newest()
    try:
        trainer.train(resume_from_checkpoint=str(newest) if newest else None)
    except Exception as error:
        if newest is None or lines.left.first is not None or lacks_memory(error):
            raise
        text = f"is damaged: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise UserError(text, where=str(newest), remedy=BEGIN_AGAIN) from error


class _LossLines(TrainerCallback):
    def __init__(self) -> None:
        self.left = TimeLeft()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.left.first is None:
            self.left.text(state.global_step / state.max_steps)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            left = self.left.text(state.global_step / state.max_steps)
            more = f", {left}" if left else ""
            logger.info("step %d of %d: loss %.3f%s", state.global_step, state.max_steps, float(logs["loss"]), more)


class _Bar(ProgressCallback):
    """The progress bar of transformers, which does not print the dictionaries of metrics."""

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        """Print nothing here: `_LossLines` reports the loss."""
