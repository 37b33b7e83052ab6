"""Is a checkpoint what was written? Hashes and sizes of its files, and the versions of the libraries that wrote it."""

import hashlib
import json
from collections.abc import Container
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import as_read_again

STATE = "trainer.json"
PACKAGES = ("torch", "transformers", "rlhf-dialog")


def add_seal(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    """The content of trainer.json: `state`, hash and size of every file in the folder, the versions, and a hash of all that."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    content = {
        **state,
        "files": {name: sha256_of_file(path) for name, path in files.items()},
        "sizes": {name: path.stat().st_size for name, path in files.items()},
        "versions": versions(),
    }
    return content | {"sha256": _seal(content)}


def sha256_of_file(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(content: dict[str, Any]) -> str:
    """The hash of the content without its own hash, as it is when it is read again."""
    return sha256_of(as_read_again({key: value for key, value in content.items() if key != "sha256"}))


def verify(
    source: Path, state: dict[str, Any], mode: str = "full", names: Container[str] | None = None, option: str = ""
) -> None:
    """Compare the checkpoint's files, or only those of these `names`, with what was written; "sizes" reads only trainer.json.

    Raises UserError with the file, and the checkpoint before it, which `option` of the command names.
    """
    if fault := _fault(source, state, mode, names):
        raise UserError(f"{source}: is damaged: {fault}{way_back(source, option)}")


def _fault(source: Path, state: dict[str, Any], mode: str, names: Container[str] | None = None) -> str:
    """What is wrong with the first file that differs from what was written; empty if none does."""
    if "sha256" in state and _seal(state) != state["sha256"]:
        return f"{STATE} has changed since it was written (SHA-256)"
    sizes, digests = (
        {name: value for name, value in state.get(key, {}).items() if names is None or name in names}
        for key in ("sizes", "files")
    )
    for name, size in sizes.items():
        path = source / name
        if not path.is_file():
            return f"{name} is missing"
        if (found := path.stat().st_size) != size:
            return f"{name} has {found} bytes, but {size} were written"
    for name, digest in digests.items() if mode == "full" else ():
        if sha256_of_file(source / name) != digest:
            return f"{name} has changed since it was written (SHA-256)"
    return ""


def way_back(source: Path, option: str = "") -> str:
    """`; the checkpoint before it is ...`, and how to use it, for the end of a message.

    `option`: that of the command which names a checkpoint; without one, the pointer `latest` does.
    """
    earlier = sorted(path.name for path in source.parent.glob("iter_??????") if path.name < source.name)
    if not earlier:
        return "; there is no checkpoint before it"
    use = f"use it with {option} {earlier[-1]}" if option else f"write its name into {source.parent / 'latest'}"
    return f"; the checkpoint before it is {earlier[-1]}: {use}"


def versions() -> dict[str, str]:
    """The installed version of each library that decides the numbers of a run, and of this package."""
    found = dict.fromkeys(PACKAGES, "unknown")
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def changed_versions(state: dict[str, Any]) -> str:
    """`torch 2.6.0 -> 2.7.0, ...`: the versions that differ from those of the checkpoint; empty if none does."""
    then = state.get("versions", {})
    changed = {name: now for name, now in versions().items() if then.get(name, now) != now}
    return ", ".join(f"{name} {then[name]} -> {now}" for name, now in changed.items())


def sha256_of(identity: Any) -> str:
    """The hash of the canonical JSON."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
