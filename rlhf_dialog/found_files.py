"""Which files of a folder are opened that somebody else may have made: regular ones that lie in it, both ends resolved.

A link out of the folder could make the program read any file of this machine, and write its content into what is published.
A folder of the Hub's cache (`models--*/snapshots/REVISION`) also has the blobs of its own entry (`models--*/blobs`), to
which its files are links. Nothing is opened here, so that a pipe cannot wait for a writer.

The folder that the user names may itself be a link. The parts of a run, which a command finds below its folder, may not.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from rlhf_dialog.errors import UserError

PARTS = ("agent", "best_agent", "checkpoints")  # the folders of a run that commands read
OF_A_RUN = ("config.yaml", "metrics.jsonl", "checkpoints")  # one of them is in the folder of every run


def check_files(folder: str | Path, names: Iterable[str] | None = None) -> None:
    """Raises UserError, with its name, for a file or folder below `folder` that may not be opened; hidden ones are skipped.

    names: look only at these. What is not there passes, also a folder, which may be a name on the Hub.
    """
    root = Path(folder).expanduser()
    places = _places(root)
    if names is not None:
        for name in names:
            _check(root / name, root, places)
        return
    left, seen = [root], set[str]()
    while left:
        current = left.pop()
        real = os.path.realpath(current)
        if real in seen or not os.path.isdir(real):
            continue
        seen.add(real)  # links may form a circle
        for entry in _entries(current):
            if not entry.name.startswith("."):
                _check(entry, root, places)
                left.append(entry)


def check_part(folder: str | Path, trusted: bool = False, of_run: bool = False) -> None:
    """Raises UserError where `folder` is the agent or the checkpoints of a run and leads out of the run, unless `trusted`.

    of_run: a command has found it in the run that the user named; else only a folder beside the files of a run counts.
    """
    path = Path(folder).expanduser()
    if trusted or not (of_run or (path.name in PARTS and any((path.parent / name).exists() for name in OF_A_RUN))):
        return
    if not is_below(path, path.parent):
        raise UserError(
            f"is a link out of the run, to {os.path.realpath(path)}, so it is not opened",
            where=str(path),
            remedy="name that folder if you want it, or follow the link with --trust_config",
        )


def agent_folder(name: str, trusted: bool = False) -> str:
    """The folder of the agent where `name` is that of a run, else the name as it is. Raises UserError as `check_part`."""
    place = Path(name).expanduser()
    if (place / "config.json").exists() or not (place / "agent").is_dir():
        check_part(place, trusted)
        return name
    check_part(place / "agent", trusted, of_run=True)
    return str(place / "agent")


def is_below(path: str | Path, folder: str | Path) -> bool:
    """Whether the path, links resolved, lies in the folder, or in the blobs of its entry in the Hub's cache."""
    return _is_in(path, _places(Path(folder)))


def not_trusted(path: Path, why: str) -> UserError:
    """The error of a file that was found and names what only the user may ask for; why: `key: reason`."""
    return UserError(
        f"{path} was found, not named by you, so it is read as data only; {why}. If you trust the file, allow it with "
        "--trust_config"
    )


def _places(folder: Path) -> list[Path]:
    """The resolved folder and, where it lies in the Hub's cache, the blobs of its entry."""
    real = Path(os.path.realpath(folder))
    entries = [one for one in real.parents if one.name.startswith("models--") and one / "snapshots" in real.parents]
    return [real, *(entry / "blobs" for entry in entries[:1])]


def _is_in(path: str | Path, places: list[Path]) -> bool:
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(place) for place in places)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise UserError(
            f"cannot be read: {error.strerror}", where=str(folder), remedy="give it read permission"
        ) from None


def _check(path: Path, folder: Path, places: list[Path]) -> None:
    if not _is_in(path, places):
        raise UserError(
            f"{'is a link' if path.is_symlink() else 'leads'} out of {folder}, so it is not opened",
            where=str(path),
            remedy="if you know what it holds, copy it into the folder (cp -L)",
        )
    if path.exists() and not path.is_file() and not path.is_dir():
        what, remedy = "is a pipe, a device or a socket, not a file", "remove it, or copy its content into a file"
        raise UserError(what, where=str(path), remedy=remedy)
