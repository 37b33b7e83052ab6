"""The files behind a run's reward: the user's own code, and the small files of the models' folders, as hashes.

The weights of a reward's models are part of the run's identity. These files are not: an edited reward may compute the same, so a
resumed run only reports what has changed.
"""

import hashlib
import inspect
from pathlib import Path

from rlhf_dialog.config.schema import Config
from rlhf_dialog.rewards.base import BaseReward, walk
from rlhf_dialog.rewards.composite import model_paths

SMALL = 2**22  # bytes; larger files are weights


def hashes_of(config: Config, reward: BaseReward) -> dict[str, str]:
    """A hash for each file of code, by `reward NAME: FILE`, and of each small file in a model's folder, by its path."""
    hashes = {}
    for one in walk(reward):
        path = code_of(type(one))
        if path is not None:
            hashes[f"reward {one.name}: {path.name}"] = _hash(path)
    for folder in model_paths(config.reward_class.id, config.reward_class.args).values():
        for path in sorted(Path(folder).glob("*")):
            if path.is_file() and path.stat().st_size <= SMALL:
                hashes[f"{folder}/{path.name}"] = _hash(path)
    return hashes


def code_of(cls: type) -> Path | None:
    """The file in which a user defined the class; None for a class of this package or without a file."""
    if cls.__module__.split(".")[0] == __name__.split(".")[0]:
        return None
    try:
        source = inspect.getsourcefile(cls)
    except TypeError:  # the class has no file, as in a shell
        return None
    return Path(source) if source and Path(source).is_file() else None


def list_changed(now: dict[str, str], then: object) -> list[str]:
    """The files that a checkpoint knows and that are others now."""
    known = then if isinstance(then, dict) else {}
    return [name for name, value in now.items() if name in known and known[name] != value]


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
