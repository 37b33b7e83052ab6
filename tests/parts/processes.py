"""Child processes of tests, and the repository's scripts as modules."""

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
HANGING = 600  # seconds; only to end what would never end


def environment(**changes: str | None) -> dict[str, str]:
    """That of this process with one thread and this repository's packages; None removes a variable."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    wanted = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **changes}
    return {name: value for name, value in wanted.items() if value is not None}


def run_command(
    *words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in `environment()` by default; its exit code and what it wrote."""
    found = environment() if env is None else env
    return subprocess.run(
        [str(word) for word in words], cwd=cwd, env=found, capture_output=True, text=True, check=False, timeout=HANGING
    )


def run_python(
    *words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`python *words` as `run_command`."""
    return run_command(sys.executable, *words, cwd=cwd, env=env)


def output_of(*words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """What `python *words` writes to stdout; it must end with code 0."""
    ran = run_python(*words, cwd=cwd, env=env)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def start_python(*words: str | Path, **options: Any) -> subprocess.Popen[str]:
    """`python *words` in `environment()`, started; `options` are those of Popen, e.g. `stdout=subprocess.PIPE`."""
    return subprocess.Popen([sys.executable, *map(str, words)], text=True, **{"env": environment(), **options})


def load_file(path: Path, name: str) -> ModuleType:
    """A Python file as the module `name`, which it also is in `sys.modules`."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def load_script(path: str) -> ModuleType:
    """The script at `path`, seen from the repository's root, loaded once: `load_script("scripts/evaluate.py")`."""
    return load_file(ROOT / path, f"script_{Path(path).stem}")
