"""The versions that made a result: Python, the libraries, and the commit of the checkout."""

import platform
import subprocess
from pathlib import Path

import torch
import transformers

import rlhf_dialog

ROOT = Path(rlhf_dialog.__file__).resolve().parents[1]


def versions() -> dict[str, str | None]:
    """Python, the libraries, and the commit of the checkout (`+` for uncommitted changes), None without one."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "rlhf_dialog": rlhf_dialog.__version__,
        "commit": _commit(),
    }


def _commit() -> str | None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(ROOT), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    if not (ROOT / ".git").exists():  # installed; a repository further up is another project
        return None
    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
