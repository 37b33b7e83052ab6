"""The folder of a run: how a run starts in it, what it may contain, and how it is repaired after a kill."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlhf_dialog.atomic_files import remove_whole, repair_swaps
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import is_below
from rlhf_dialog.rewards.judge import CACHE
from rlhf_dialog.runs.checkpoint import checkpoints_of, finish_saving, iteration_of, newest_checkpoint
from rlhf_dialog.runs.metrics_file import read_metrics, scan_metrics

logger = logging.getLogger(__name__)
RUN_FILES = (  # in the order of removal: without checkpoints, nothing resumes a partly removed run
    *("checkpoints", "agent", "best_agent", "evaluation.json", "error.log", "tensorboard", "wandb_run_id", "wandb"),
    *("report.html", "ledger.jsonl", "metrics.jsonl", "local_names.json", "config.yaml"),
)


@dataclass
class Start:
    """What the flags of the command line ask for.

    resume: go on after the newest checkpoint; `auto`: if there is a run in the folder, else begin one
    weights_from: the folder of another run, whose weights the run begins with
    """

    overwrite: bool = False
    resume: bool | Literal["auto"] = False
    weights_from: Path | None = None

    def settle(self, folder: Path, world: World) -> None:
        """Decide for `resume="auto"`: continue the run that is there, or begin one, with the weights that were asked for.

        A run that was killed before it had saved those weights has nothing to continue, and is replaced.
        """
        if self.resume != "auto":
            return
        self.resume = world.on_main(lambda: has_begun(folder))
        if self.resume and self.weights_from is not None:
            if world.on_main(lambda: bool(checkpoints_of(folder / "checkpoints")) or _has_metrics(folder)):
                self.weights_from = None
            else:
                self.resume, self.overwrite = False, True

    def check(self, folder: Path, save_interval: int) -> None:
        """What can be known of the run folder before anything is loaded. Raises UserError."""
        check_folder(folder, self.overwrite, bool(self.resume), save_interval)
        if self.weights_from is None:
            return
        if self.resume:
            what = "begins a new run, --resume goes on with an old one; give one of them"
            raise UserError(f"--resume_weights_only {what}")
        if self.weights_from.absolute() == folder.absolute():
            remedy = "give the new run another name with --experiment_name"
            raise UserError(f"--resume_weights_only: {folder} is this run's own folder; {remedy}")
        if newest_checkpoint(self.weights_from / "checkpoints") is None:
            what = "contains no checkpoint; choose the folder of a run that has one"
            raise UserError(f"--resume_weights_only: {self.weights_from} {what}")

    def prepare(self, folder: Path, kept: Path | None = None, extra_files: tuple[str, ...] = ()) -> Path | None:
        """Remove what the run replaces and what a kill left behind; returns the checkpoint to continue from.

        kept: what `overwrite` does not remove, because it is of this run; extra_files: files that it removes too
        """
        if self.overwrite and not self.resume:
            clear(folder, kept)
            for name in extra_files:
                (folder / name).unlink(missing_ok=True)
        for run in [folder] if self.resume else [self.weights_from] if self.weights_from else []:
            if not is_below(run / "checkpoints", run):
                logger.info(
                    "%s is a link to %s, which is followed", run / "checkpoints", (run / "checkpoints").resolve()
                )
        repair(folder)
        return newest_checkpoint(folder / "checkpoints") if self.resume else None


def holds_run(folder: Path) -> bool:
    """Whether the folder contains results of a run, which must not be lost."""
    return _has_metrics(folder) or any((folder / name).exists() for name in ("agent", "checkpoints", "evaluation.json"))


def has_begun(folder: Path) -> bool:
    """Whether a run has begun in the folder, even if it has no results yet."""
    return holds_run(folder) or (folder / "config.yaml").is_file()


def _has_metrics(folder: Path) -> bool:
    metrics = folder / "metrics.jsonl"
    return metrics.is_file() and metrics.stat().st_size > 0


def check_folder(folder: Path, overwrite: bool, resume: bool, save_interval: int) -> None:
    """Raises UserError when a run must not start (or continue) in the folder."""
    if holds_run(folder) and not (overwrite or resume):
        raise UserError(
            f"{folder}: already contains a run; replace it with --overwrite, continue it with --resume, or choose another "
            "name with --experiment_name"
        )
    if resume:
        source = newest_checkpoint(folder / "checkpoints")
        _check_beginning(folder, save_interval) if source is None else check_metrics(folder, source)
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(f"run_dir: {folder} cannot be written: {existing} is not a folder that you may write to")


def _check_beginning(folder: Path, save_interval: int) -> None:
    """Without a checkpoint, only a run that was killed before its first one may restart. Raises UserError otherwise."""
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder}: contains no checkpoint to resume from; start without --resume")
    metrics = folder / "metrics.jsonl"
    lines = len(read_metrics(metrics)) if metrics.is_file() else 0
    if lines > save_interval or (folder / "agent").exists():
        raise UserError(
            f"{folder}: contains a run of {lines} iterations, but no checkpoint to resume from; replace it with --overwrite, or "
            "choose another name with --experiment_name"
        )


def check_metrics(run: Path, source: Path) -> None:
    """Raises UserError when metrics.jsonl ends before the checkpoint `source`, since a gap would remain in it."""
    metrics, iteration = run / "metrics.jsonl", iteration_of(source)
    rows, fault = scan_metrics(metrics) if metrics.is_file() else ([], "")
    last = len(rows)
    if last >= iteration:
        return
    content = f"contains only iterations 1 to {last} without a gap" if last else "does not start with iteration 1"
    place = f"{fault}; " if fault else ""
    raise UserError(
        f"{metrics}: {content if metrics.is_file() else 'is missing'}, but {source.name} is of iteration {iteration}; "
        f"{place}restore it from a copy, or start a new run with its weights: --resume_weights_only {run} "
        "--experiment_name <a new name>"
    )


def clear(folder: Path, kept: Path | None = None) -> None:
    """Remove the files of a run, and nothing else; `kept` is a folder in one of its folders that the new run has made."""
    for path in (*(folder / name for name in RUN_FILES), *folder.glob(CACHE.format(rank="*"))):
        holds_kept = kept and path.is_dir() and path.resolve() == kept.parent.resolve()
        for one in list(path.iterdir()) if holds_kept else [path]:
            if kept is None or one.resolve() != kept.resolve():
                remove_whole(one) if one.is_dir() and not one.is_symlink() else one.unlink(missing_ok=True)


def repair(folder: Path) -> None:
    """After a kill, finish or undo what it interrupted: swaps of folders, temporary files, and a save."""
    repair_swaps(folder, RUN_FILES)
    checkpoints = folder / "checkpoints"
    repair_swaps(checkpoints, {path.name.removeprefix(".").rsplit(".", 1)[0] for path in checkpoints.glob(".*.*")})
    finish_saving(checkpoints)
