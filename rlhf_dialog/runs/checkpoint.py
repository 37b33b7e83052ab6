"""The folder of checkpoints of any run: each written whole, `latest` named last; what is kept, and which one is read."""

import logging
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from rlhf_dialog.atomic_files import atomic_folder, remove_whole, replace_text, write_json
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import check_files, is_below
from rlhf_dialog.json_files import FAULTS, damage_as_user_error, load_json
from rlhf_dialog.runs.verification import STATE, add_seal, way_back

logger = logging.getLogger(__name__)
FORMAT_VERSION = 1
UNANNOUNCED = "unannounced"  # file in a checkpoint that `latest` does not name yet: the previous `latest`
POINTER_REMEDY = "write the name of a checkpoint in this folder into it (iter_000004), or remove it"
NAME = r"iter_[0-9]+"


def save_checkpoint(folder: Path, state: dict[str, Any], fill: Callable[[Path], dict[str, Any]], keep: int) -> Path:
    """Write `folder`/iter_NNNNNN and point `latest` at it.

    `state` is JSON with the key "iteration"; `fill` writes the files into the new folder, and returns what else belongs into
    its JSON. Of the checkpoints up to this one, keeps the newest `keep`, the one that `state` records as the best, and those
    that the guard protects, and removes the others. Raises UserError when the folder cannot be written; existing files stay
    intact.
    """
    name = f"iter_{state['iteration']:06d}"
    with atomic_folder(folder / name) as target:
        filled = fill(target)
        write_json(target / STATE, add_seal(target, {"format_version": FORMAT_VERSION, **state, **filled}))
        (target / UNANNOUNCED).write_bytes(_text_of(folder / "latest"))
    try:
        replace_text(folder / "latest", name)
        (folder / name / UNANNOUNCED).unlink()
        branch = [one for one in checkpoints_of(folder) if iteration_of(one) <= state["iteration"]]
        protected = [newest_up_to(folder, i) for i in state.get("guard", {}).get("protected", ())]
        for old in branch[:-keep]:
            if old not in protected and iteration_of(old) != best_iteration(state):
                remove_whole(old)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error}") from error
    return folder / name


def best_iteration(state: dict[str, Any]) -> int:
    """The best iteration that a checkpoint knows of; -1 if there was no evaluation before it."""
    return int(((state.get("validation") or {}).get("best") or {"iteration": -1})["iteration"])


def finish_saving(folder: Path) -> None:
    """After a kill, point `latest` at a complete checkpoint that it does not name yet, unless `latest` has changed since."""
    for checkpoint in checkpoints_of(folder):
        if (checkpoint / UNANNOUNCED).is_file():
            if _text_of(folder / "latest") == (checkpoint / UNANNOUNCED).read_bytes():
                replace_text(folder / "latest", checkpoint.name)
            (checkpoint / UNANNOUNCED).unlink()


def _text_of(pointer: Path) -> bytes:
    return pointer.read_bytes() if pointer.is_file() else b""


def checkpoints_of(folder: Path) -> list[Path]:
    """The checkpoints in the folder, in the order of their iterations."""
    return sorted((one for one in folder.glob("iter_*") if re.fullmatch(NAME, one.name)), key=iteration_of)


def newest_up_to(folder: Path, iteration: int) -> Path | None:
    """The newest checkpoint of an iteration that is not after `iteration`."""
    return next((one for one in reversed(checkpoints_of(folder)) if iteration_of(one) <= iteration), None)


def iteration_of(checkpoint: Path) -> int:
    """The iteration in the name of a checkpoint."""
    return int(checkpoint.name.removeprefix("iter_"))


def read_state(folder: Path, source: Path | None = None) -> tuple[Path, dict[str, Any]]:
    """The folder of the checkpoint `source`, by default the newest, and its trainer.json; reads no tensors.

    Raises UserError when there is none, when it is damaged, has another format, or a file may not be opened (`found_files`).
    """
    source = source or newest_checkpoint(folder)
    if source is None:
        raise UserError(f"{folder}: contains no checkpoint to resume from; start without --resume")
    check_files(folder, [source.name])
    check_files(source)
    with as_user_error(source, way_back):
        state = load_json(source / STATE)
        if state["format_version"] != FORMAT_VERSION:
            raise UserError(
                f"{source}: has format version {state['format_version']}, but this program reads {FORMAT_VERSION}; use the "
                "version of the program that wrote it"
            )
        if not isinstance(state["iteration"], int):
            raise TypeError("its iteration is not a number")
        if state["iteration"] != iteration_of(source):
            raise UserError(
                f"{source}: contains the state of iteration {state['iteration']}; rename it to iter_{state['iteration']:06d}, or "
                "resume from another checkpoint"
            )
    return source, state


DAMAGE = (*FAULTS, RuntimeError, ArithmeticError, SafetensorError)


def as_user_error(source: Path, remedy: Callable[[Path], str] = lambda _: "") -> AbstractContextManager[None]:
    """`damage_as_user_error` for the files of a checkpoint, which may also be of another run; `remedy` ends the sentence."""
    return damage_as_user_error(
        f"{source}: is damaged or does not fit this run: ",
        lambda: remedy(source),
        faults=DAMAGE,
        in_words=lambda error: f"{type(error).__name__}: {error}",
    )


def checkpoint_of_found_run(run: Path) -> Path | None:
    """The newest checkpoint of a run that somebody else may have made; None where its `checkpoints` lead out of the run."""
    return newest_checkpoint(run / "checkpoints") if is_below(run / "checkpoints", run) else None


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that `latest` names; without that pointer (a kill came before it) the last one; None if there is none.

    Raises UserError when the pointer does not name a checkpoint of this folder.
    """
    if (folder / "latest").is_symlink() or (folder / "latest").exists():
        source = _resolve_pointer(folder / "latest")
        if not source.is_dir():
            raise UserError(f"{folder / 'latest'}: names {source.name}, which does not exist; {POINTER_REMEDY}")
        return source
    return max(checkpoints_of(folder), key=iteration_of, default=None)


def describe_kept(folder: Path) -> str:
    """What the checkpoints of `folder` mean for a run that ends now, as the last part of a message."""
    try:
        newest = newest_checkpoint(folder)
    except UserError:
        return f"{folder} has a damaged pointer to the newest checkpoint"
    if newest is None:
        return "there is no checkpoint yet, so --resume starts from the beginning"
    return f"the checkpoint {newest.name} is kept, from which --resume continues"


def _resolve_pointer(pointer: Path) -> Path:
    """The checkpoint that a pointer names; only `iter_` and digits are accepted, so that no other folder is ever read."""
    check_files(pointer.parent, [pointer.name])
    try:
        name = pointer.read_bytes()[:200].decode("utf-8", "replace").strip()
    except OSError as error:
        raise UserError(f"{pointer}: cannot be read: {error.strerror}; {POINTER_REMEDY}") from error
    if not re.fullmatch(NAME, name):
        raise UserError(f"{pointer}: names {name!r}, which is not a checkpoint of this folder; {POINTER_REMEDY}")
    return pointer.parent / name
