"""Going back to an older checkpoint starts a new branch of a run; later files are moved aside, and nothing is lost."""

import logging
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlhf_dialog.atomic_files import replace_text
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs.checkpoint import (
    as_user_error,
    best_iteration,
    checkpoints_of,
    iteration_of,
    mark_best,
    newest_checkpoint,
    usable_best,
)
from rlhf_dialog.runs.ledger import LEDGER, cut_ledger, end_of
from rlhf_dialog.runs.metrics_file import cut_metrics, first_fault, last_iteration

logger = logging.getLogger(__name__)
ABANDONED = "abandoned"  # in checkpoints/


def chosen_checkpoint(checkpoints: Path, name: str | None) -> Path | None:
    """The checkpoint to resume from: `name` (`iter_000004` or `4`), by default the newest; None if there is none.

    Raises UserError when there is no checkpoint of that name.
    """
    if name is None:
        return newest_checkpoint(checkpoints)
    number = re.fullmatch(r"(?:iter_)?([0-9]{1,250})", name)
    found = [one for one in checkpoints_of(checkpoints) if number and iteration_of(one) == int(number[1])]
    if not found:
        raise UserError(f"--resume_from: {name[:250]!r} is not a checkpoint in {checkpoints}; {_there(checkpoints)}")
    return found[0]


def _there(checkpoints: Path) -> str:
    """The checkpoints that a run can go back to, and how to continue an abandoned branch."""
    names = ", ".join(one.name for one in checkpoints_of(checkpoints))
    abandoned = ", ".join(sorted(one.name for one in (checkpoints / ABANDONED).glob("iter_*")))
    text = f"choose one of {names}" if names else "it contains none"
    if abandoned:
        text += (
            f". {checkpoints / ABANDONED} contains {abandoned}; to continue one of these, create a new run folder for it: copy "
            "it to checkpoints/ there under its original name (iter_000004.2 as iter_000004), write a metrics.jsonl with the "
            f"lines of its iterations (the older ones are in {checkpoints.parent / 'metrics.jsonl'}, the later ones in the "
            "file metrics_after_... next to it), and start it with --resume --experiment_name <its name>"
        )
    return text


def check_metrics(run: Path, source: Path) -> None:
    """Raises UserError when metrics.jsonl ends before the checkpoint `source`, since a gap would remain in it."""
    metrics, iteration = run / "metrics.jsonl", iteration_of(source)
    reached = last_iteration(metrics)
    if reached >= iteration:
        return
    fitting = [one.name for one in checkpoints_of(source.parent) if iteration_of(one) <= reached]
    remedy = f"continue from a checkpoint that fits, --resume_from {fitting[-1]}, " if fitting else ""
    holds = f"contains only iterations 1 to {reached} without a gap" if reached else "does not start with iteration 1"
    fault = first_fault(metrics)
    place = f"{fault}; " if fault else ""
    raise UserError(
        f"{metrics}: {holds if metrics.is_file() else 'is missing'}, but {source.name} is of iteration {iteration}; "
        f"{place}restore it from a copy, {remedy}or start a new run with its weights: --resume_weights_only {run} "
        "--experiment_name <a new name>"
    )


def leave_later(run: Path, source: Path, state: dict[str, Any]) -> None:
    """Make `source` (with its `state`) the newest checkpoint: moves everything later to checkpoints/abandoned/.

    The later checkpoints are moved last, so that after a kill the next resume can finish. Raises UserError when the folder
    cannot be written.
    """
    checkpoints, iteration = source.parent, iteration_of(source)
    later = [one for one in checkpoints_of(checkpoints) if iteration_of(one) > iteration]
    best = usable_best(checkpoints)
    best_is_later = best is not None and iteration_of(best) > iteration
    with as_user_error(source):
        earlier = best_iteration(state)
    try:
        if _content(checkpoints / "latest") != source.name.encode():
            replace_text(checkpoints / "latest", source.name)
        if not (later or best_is_later):
            return
        (checkpoints / ABANDONED).mkdir(exist_ok=True)
        _keep_lines(run / LEDGER, source, end_of(run / LEDGER, iteration))
        cut_ledger(run / LEDGER, iteration)
        lines = _content_of(run / "metrics.jsonl").splitlines(keepends=True)
        _keep_lines(run / "metrics.jsonl", source, sum(map(len, lines[:iteration])))
        cut_metrics(run / "metrics.jsonl", iteration)
        _put_aside(checkpoints, run / "agent", run / "evaluation.json")
        if best_is_later:
            _put_aside(checkpoints, run / "best_agent")
            restore_best(checkpoints, earlier)
        _put_aside(checkpoints, *later)
    except OSError as error:
        raise UserError(f"{checkpoints}: cannot be written: {error}") from error
    logger.info(
        "went back to %s; moved everything later to %s: %s. From now on --resume continues this branch",
        source.name,
        checkpoints / ABANDONED,
        ", ".join(one.name for one in later),
    )


def _keep_lines(file: Path, source: Path, end: int) -> None:
    """Copy what metrics.jsonl or the ledger has after its first `end` bytes to a file next to the abandoned checkpoints."""
    tail = _content_of(file)[end:].decode("utf-8", "backslashreplace")
    folder, name = source.parent / ABANDONED, f"{file.stem}_after_{source.name}"
    kept = (one.read_text(encoding="utf-8") for one in folder.glob(f"{name}*.jsonl"))
    if tail and tail not in kept:  # else a kill interrupted the two steps
        replace_text(_free(folder / f"{name}.jsonl"), tail)


def _content_of(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def restore_best(checkpoints: Path, iteration: int) -> None:
    """Point `best` at the checkpoint of `iteration` (-1: no earlier evaluation), if it still exists. Raises OSError."""
    if iteration in map(iteration_of, checkpoints_of(checkpoints)):
        mark_best(checkpoints, iteration)
        return
    with suppress(IsADirectoryError):
        (checkpoints / "best").unlink(missing_ok=True)
    if iteration >= 0:
        logger.warning("the best checkpoint so far, of iteration %d, no longer exists", iteration)


def _content(pointer: Path) -> bytes:
    return pointer.read_bytes().strip() if pointer.is_file() and not pointer.is_symlink() else b""


def _put_aside(checkpoints: Path, *paths: Path) -> None:
    for path in paths:
        if path.exists() or path.is_symlink():
            path.rename(_free(checkpoints / ABANDONED / path.name))


def _free(path: Path) -> Path:
    """The path, or, if it exists, the path with a number after its name (`iter_000004.2`)."""
    number, free = 1, path
    while free.exists() or free.is_symlink():
        number += 1
        free = path.with_name(f"{path.stem}.{number}{path.suffix}")
    return free
