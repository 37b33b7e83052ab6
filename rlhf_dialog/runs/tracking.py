"""Destinations of metrics: always metrics.jsonl; console, wandb and TensorBoard by configuration."""

import json
import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rlhf_dialog.atomic_files import replace_text
from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError
from rlhf_dialog.terminal import Console, visible
from rlhf_dialog.training.rollout import Rollout

logger = logging.getLogger(__name__)
Metrics = dict[str, float]
NUM_SHOWN = 8  # metrics in the console line of an evaluation


class Tracker(Protocol):
    """One destination of metrics."""

    def log(self, step: int, metrics: Metrics) -> None: ...

    def close(self) -> None: ...


class JsonlTracker:
    """`metrics.jsonl`, one object per line, written immediately in every iteration; non-finite numbers are null."""

    def __init__(self, path: Path):
        self.path = path
        self.file = path.open("ab", buffering=0)  # unbuffered: after a full disk, closing must not write again

    def log(self, step: int, metrics: Metrics) -> None:
        finite = {name: value if math.isfinite(value) else None for name, value in as_numbers(metrics).items()}
        line = json.dumps(finite).encode() + b"\n"
        while line:
            line = line[self.file.write(line) :]
        os.fsync(self.file.fileno())  # a checkpoint never outlives the line of its iteration

    def close(self) -> None:
        self.file.close()


def as_numbers(metrics: Metrics) -> Metrics:
    """The metrics as Python numbers; a vec-info may return other numeric types."""
    return {name: value if isinstance(value, int | float) else float(value) for name, value in metrics.items()}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, without a last line that a kill left incomplete."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def last_iteration(path: Path) -> int:
    """The last iteration of a metrics.jsonl before any gap, counted from 1; 0 if there is no such file."""
    rows = read_metrics(path) if path.is_file() else []
    gap = (i for i, row in enumerate(rows) if not isinstance(row, dict) or row.get("iteration") != i + 1)
    return next(gap, len(rows))


def cut_metrics(path: Path, iteration: int) -> None:
    """Remove the lines after `iteration`, atomically, since a resumed run will write them again."""
    if path.exists():
        kept = [row for row in read_metrics(path)[:iteration] if row["iteration"] <= iteration]
        replace_text(path, "".join(json.dumps(row) + "\n" for row in kept))


class WandbTracker:
    """Weights & Biases; offline if no key and no mode is set."""

    def __init__(self, config: Config, folder: Path):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # do not send crash reports to its makers
        import wandb

        mode = os.environ.get("WANDB_MODE")
        if mode is None and not (os.environ.get("WANDB_API_KEY") or wandb.api.api_key):
            mode = "offline"
            logger.info(
                "wandb: no key found; logging offline to %s; use `wandb sync` to upload it later", folder / "wandb"
            )
        self.run = wandb.init(
            project=config.wandb_project,
            entity=config.wandb_entity,
            name=config.experiment_name,
            config=config.model_dump(),
            dir=str(folder.absolute()),  # the process that writes may have another working directory
            mode=mode,  # type: ignore[arg-type]
            settings=wandb.Settings(console="off"),
        )

    def log(self, step: int, metrics: Metrics) -> None:
        self.run.log(metrics, step=step)

    def close(self) -> None:
        self.run.finish()


class TensorBoardTracker:
    """Event files in <run folder>/tensorboard."""

    def __init__(self, folder: Path):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class ConsoleTracker:
    """A live line with remaining time, reward, KL and FPS on a terminal; otherwise one plain line per log point."""

    def __init__(self, config: Config):
        self.console = Console()
        if not self.console.is_terminal:
            self.console = Console(width=160)
        self.live = self.console.is_terminal and config.use_rich_handler
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TaskProgressColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.live,
        )
        self.eval_metric = config.eval_metric
        self.task = self.progress.add_task("collecting the first rollout", total=1.0)
        self.progress.start()

    def log(self, step: int, metrics: Metrics) -> None:
        """Print a line for the iteration if it has metrics, and a line for its evaluation if there was one."""
        if "objective/score" in metrics:
            self._show_iteration(step, metrics)
        found = {name.removeprefix("eval/"): value for name, value in metrics.items() if name.startswith("eval/")}
        if found:
            names = [name for name in dict.fromkeys(("score", self.eval_metric, *found)) if name in found]
            numbers = "  ".join(f"{name} {found[name]:.3f}" for name in names[:NUM_SHOWN])
            self.console.print(f"evaluation of iteration {step}  {numbers}", highlight=False)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the live line while the block runs, to make room for another progress bar."""
        if not self.live:
            yield
            return
        self.progress.live.transient = True
        self.progress.stop()
        try:
            yield
        finally:
            self.progress.live.transient = False
            self.progress.start()

    def _show_iteration(self, step: int, metrics: Metrics) -> None:
        text = (
            f"iteration {step}  reward {metrics['objective/score']:.3f}  KL {metrics['objective/kl']:.3f}  "
            f"FPS {metrics['FPS']:.0f}"
        )
        if self.live:
            self.progress.update(self.task, description=text)
        else:
            tokens, length = metrics["time_steps"], metrics["response/length"]
            self.console.print(f"{text}  length {length:.1f}  tokens {tokens:.0f}", highlight=False)

    def advance(self, share: float) -> None:
        """Show that `share` (0 to 1) of the run is done."""
        self.progress.update(self.task, completed=share)

    def show_samples(self, rollout: Rollout, step: int, num_samples: int = 3) -> None:
        """Print a table of dialogues of a rollout with the parts of their reward."""
        parts = rollout.reward_scores.parts
        table = Table(title=f"samples of iteration {step}", show_lines=True, title_justify="left")
        for name, style in (("last turn", "dim"), ("response", "bold"), ("reference", "dim")):
            table.add_column(name, style=style, overflow="fold", ratio=3)
        for name in ("score", *parts):
            table.add_column(name, justify="right", no_wrap=True)
        stride = max(len(rollout) // num_samples, 1)
        for i in range(0, min(stride * num_samples, len(rollout)), stride):
            dialogue = rollout.dialogues[i]
            texts = (
                dialogue.prompt_turns[-1],
                dialogue.response + (" [cut]" if dialogue.truncated else ""),
                dialogue.reference or "",
            )
            numbers = [rollout.scores[i].item(), *(part.raw[i] for part in parts.values())]
            table.add_row(*map(Text, map(visible, texts)), *(f"{number:.2f}" for number in numbers))
        self.console.print(table)

    def close(self) -> None:
        self.progress.stop()


class Trackers:
    """All trackers of a run."""

    def __init__(self, config: Config, folder: Path):
        self.console = ConsoleTracker(config)
        self.log_interval = config.log_interval
        self.jsonl = JsonlTracker(folder / "metrics.jsonl")
        self.others: list[Tracker] = [self.console]
        if config.use_wandb and not config.disable_wandb:
            self.others.append(WandbTracker(config, folder))
        if config.use_tensorboard:
            self.others.append(TensorBoardTracker(folder))

    def log(self, step: int, metrics: Metrics) -> None:
        """Log to metrics.jsonl; to the others every `log_interval` iterations, and evaluations always.

        Raises UserError when the disk is full.
        """
        try:
            self.jsonl.log(step, metrics)
        except OSError as error:
            raise UserError(f"{self.jsonl.path}: cannot be written: {error}") from error
        if step % self.log_interval:
            metrics = {name: value for name, value in metrics.items() if name.startswith(("eval/", "time/eval"))}
        for tracker in self.others if metrics else ():
            tracker.log(step, metrics)

    def close(self) -> None:
        for tracker in (*self.others, self.jsonl):
            tracker.close()
