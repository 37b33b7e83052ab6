"""What a run writes and shows after each iteration, on rank 0, and what it says of its best agent at the end."""

import contextlib
import logging
from pathlib import Path

from rlhf_dialog.config.schema import Config
from rlhf_dialog.runs.optional_outputs import OptionalOutputs
from rlhf_dialog.runs.services.ledger import LEDGER, Ledger, Row, table_of
from rlhf_dialog.runs.services.report import REPORT, LiveReport
from rlhf_dialog.runs.services.trackers import Trackers
from rlhf_dialog.runs.services.validation import Best
from rlhf_dialog.runs.services.wandb_tracker import open_wandb
from rlhf_dialog.training.trainer import PPOTrainer

logger = logging.getLogger(__name__)


class RunLog:
    """The trackers of a run: wandb opens with the lock of the folder, the others when the loop begins.

    `goes_on`: the run continues its own run of wandb.
    """

    def __init__(self, config: Config, run_folder: Path, goes_on: bool):
        self.config, self.run_folder = config, run_folder
        self.wandb = open_wandb(config, run_folder, goes_on)
        self.trackers: Trackers | None = None
        self.files_beside = OptionalOutputs()  # the ledger and the report
        self.recorded = 0  # the last iteration in the ledger

    @property
    def files(self) -> Path | None:
        """What wandb has in the run folder."""
        return self.wandb.files if self.wandb else None

    def open(self, done: int) -> None:
        """Open the other trackers after `done` iterations."""
        self.trackers = Trackers(self.config, self.run_folder, done, self.wandb)
        if self.config.ledger:
            self.files_beside.add(LEDGER, lambda: Ledger(self.run_folder / LEDGER))
        if self.config.report:
            self.files_beside.add(REPORT, lambda: LiveReport(self.run_folder))

    def record(self, iteration: int, rows: list[Row]) -> None:
        """The rows of an iteration for the ledger and, where it is time, for the tables of the trackers; not twice."""
        if self.trackers is None or iteration <= self.recorded:
            return
        self.recorded = iteration
        self.files_beside.use(LEDGER, lambda ledger: ledger.write(rows))
        interval = self.config.sample_interval
        if interval and iteration % interval == 0:
            self.trackers.show_ledger(iteration, *table_of(rows))

    def write(self, trainer: PPOTrainer, metrics: dict[str, float]) -> None:
        """The metrics of an iteration, the progress and, where it is time, samples."""
        if self.trackers is None:
            return
        self.trackers.advance(trainer.progress)
        self.trackers.log(trainer.iteration, metrics)
        interval = self.config.sample_interval
        if trainer.rollout and interval and trainer.iteration % interval == 0:
            self.trackers.show_samples(trainer.rollout, trainer.iteration)
        self.files_beside.use(REPORT, lambda report: report.write(trainer.progress))

    def complete(self, iteration: int, metrics: dict[str, float]) -> bool:
        """Make sure that metrics.jsonl has the line of an iteration; returns whether it has."""
        return self.trackers is not None and self.trackers.complete(iteration, metrics)

    def close(self, error: BaseException | None = None) -> None:
        """At the very end, because wandb waits until all metrics are uploaded; `error` is what the run ends with."""
        self.files_beside.use(REPORT, lambda report: report.end(error))
        self.files_beside.close()
        if self.trackers:
            self.trackers.close()
        elif self.wandb:
            with contextlib.suppress(Exception):
                self.wandb.close()


def report_best(best: Best | None, eval_metric: str, folder: Path) -> None:
    """Say which iteration was the best, and where its agent is."""
    if best is None:
        logger.warning("eval/%s was never a number, so there is no best agent", eval_metric)
        return
    logger.info(
        "best eval/%s: %.4f after iteration %d; its agent: %s",
        best.metric,
        best.value,
        best.iteration,
        folder,
    )
