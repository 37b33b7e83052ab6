"""What a stage was made with, and whether it is done: `begun.json` before its first process, `done.json` after its last."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import as_read_again, json_or, read_json

BEGUN, DONE, SPENT = "begun.json", "done.json", "spent.json"
PACKAGES = ("torch", "transformers", "trl", "tokenizers", "rlhf-dialog")
SHOWN = 3  # differences in a message


class Begun(BaseModel):
    """What decides a stage, and its hash."""

    hash: str
    decides: dict[str, Any]


class Done(Begun):
    """A stage that has ended; seconds: of all its parts, those before an interruption too."""

    seconds: float


def hash_of(decides: Any) -> str:
    """A hash of a tree of JSON."""
    return hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()[:16]


def fingerprint_of(data: Path) -> str:
    """A hash of the names and contents of a file, or of all files below a folder."""
    digest = hashlib.sha256()
    for path in sorted(data.rglob("*")) if data.is_dir() else [data]:
        if path.is_file():
            name = path.relative_to(data).as_posix()
            digest.update(f"{name}:{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}


def begin(folder: Path, decides: dict[str, Any]) -> bool:
    """Note what the stage is made with; returns whether it is done already.

    Raises UserError where the folder has a stage that was made with something else.
    """
    asked = as_read_again(decides)
    if (folder / BEGUN).is_file():
        before = _read(folder / BEGUN, Begun)
        if before["hash"] != hash_of(asked):
            raise UserError(
                f"{folder}: was made with something else: {'; '.join(_differences(before['decides'], asked))}. Go back to that, "
                f"or begin the stage again with --again {folder.name}"
            )
        return (folder / DONE).is_file()
    folder.mkdir(parents=True, exist_ok=True)
    replace_json(folder / BEGUN, {"hash": hash_of(asked), "decides": asked})
    return False


def spent(folder: Path) -> float:
    """The seconds that the stage has taken before this process."""
    return float(json_or(folder / SPENT, 0.0, float))


def spend(folder: Path, seconds: float) -> None:
    """Note the seconds that the stage has taken in all."""
    replace_json(folder / SPENT, float(round(seconds, 1)))


def end(folder: Path) -> None:
    """Note that the stage is done."""
    replace_json(folder / DONE, _read(folder / BEGUN, Begun) | {"seconds": spent(folder)})


def done(folder: Path) -> dict[str, Any]:
    """`Done` of a stage. Raises UserError where it is not done."""
    if not (folder / DONE).is_file():
        raise UserError(f"{folder}: the stage {folder.name} is not done; run it first, with --until {folder.name}")
    return _read(folder / DONE, Done)


def forget(work: Path, stages: Sequence[str]) -> None:
    """Remove the folders of these stages."""
    for name in stages:
        shutil.rmtree(work / name, ignore_errors=True)


def _read(path: Path, shape: type[Begun]) -> dict[str, Any]:
    again = f"; begin the stage again with --again {path.parent.name}"
    tree: dict[str, Any] = read_json(path, end=again, shape=shape)
    return tree


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    old, new = dict(_leaves(before)), dict(_leaves(after))
    changed = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    shown = [f"{key} was {old.get(key)!r:.60}, is {new.get(key)!r:.60}" for key in changed[:SHOWN]]
    return [*shown, *([f"{len(changed) - SHOWN} more"] if len(changed) > SHOWN else [])]


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
