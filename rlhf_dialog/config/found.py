"""The gate in front of what a file that was found asks for: docs/SECURITY.md has the rule."""

from pathlib import Path
from typing import Any

from rlhf_dialog.config.registry import Registry
from rlhf_dialog.errors import UserError


def refuse(path: Path, key: str, registry: Registry, name: str, args: dict[str, Any]) -> None:
    """The gate in front of what a file at `path` that was found has built under `key`: an environment, a policy, a network.

    Raises UserError where the arguments of the class lead out of the file's folder.
    """
    found = {f"{key}.{each}": why for each, why in registry.reaches_out(name, args, path.absolute().parent).items()}
    if found:
        raise UserError(refusal(path, found))


def refusal(path: Path, found: dict[str, str]) -> str:
    """The sentence for keys (key -> reason) that are not used."""
    keys = "; ".join(f"{key}: {why}" for key, why in found.items())
    return (
        f"{path} was found, not named by you, so it is read as data only, and these keys are not used: {keys}. If you trust the "
        "file, allow them with --trust_config"
    )
