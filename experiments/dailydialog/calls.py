"""The processes of the stages: how other commands are called, each with its log; what has its output is not called again."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from experiments.dailydialog.sizes import Keys
from rlhf_dialog.atomic_files import replace_file
from rlhf_dialog.config.loading import override_all, read_yaml, shipped_folder
from rlhf_dialog.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ["-m", "rlhf_dialog"]
SIDE_BY_SIDE = 2  # processes, one core each
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True)
class Job:
    """A Python process. `words`: what follows the interpreter; `output`: there when it has ended, and it is not run again."""

    name: str
    words: list[str]
    log: Path
    output: Path
    codes: tuple[int, ...] = (0,)  # exit codes of success


def run_jobs(jobs: Sequence[Job], side_by_side: bool = False) -> None:
    """Run the jobs whose output is not there, two at once with a core each if asked, where there are two.

    Raises UserError for one that fails, with the last line of its log. The others end with it.
    """
    at_once = min(SIDE_BY_SIDE, cores()) if side_by_side else 1
    waiting, running = [job for job in jobs if not job.output.exists()], list[tuple[Job, subprocess.Popen[bytes]]]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                print(f"  {job.name}: {job.log}", flush=True)
                running.append((job, start(job, one_core=at_once > 1)))
            time.sleep(0.2)
            for job, process in list(running):
                code = process.poll()
                if code is None:
                    continue
                running.remove((job, process))
                if code not in job.codes:
                    last = job.log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
                    raise UserError(f"{job.name}: ended with exit code {code}; {job.log} ends with: {last:.300}")
    finally:
        for _, process in running:
            process.terminate()
        for _, process in running:
            process.wait()


def start(job: Job, one_core: bool) -> "subprocess.Popen[bytes]":
    """Start the process, with its log."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    settings = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths)}
    settings |= {"OMP_NUM_THREADS": "1"} if one_core else {}
    with job.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", *job.words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | settings,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends them
            preexec_fn=die_with_parent,
        )


def die_with_parent() -> None:
    """Where the kernel is Linux, a kill of the parent, which it cannot notice, ends this process too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)


def cores() -> int:
    """The processor's cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def supervised(command: str, config: str, keys: Keys, folder: Path) -> Job:
    """A supervised training into `folder`/model; the unfinished output of a killed one is removed, its checkpoints stay."""
    for path in folder.glob(".model.partial"):
        shutil.rmtree(path)
    output = folder / "model"
    words = [*COMMAND, command, "--config", str(shipped_folder("configs") / config), "--resume", "auto"]
    for name, value in (keys | {"output": str(output)}).items():
        words += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    return Job(folder.name, words, folder / "log.txt", output)


def ppo(name: str, config: str, keys: Keys, folder: Path) -> Job:
    """A run of PPO in `folder`/`name`, with a YAML of its own beside it."""
    path = folder / f"{name}.yaml"
    write_yaml(path, config, keys | {"run_dir": str(folder), "experiment_name": name})
    words = [*COMMAND, "train", "--config", str(path), "--resume", "auto"]
    return Job(name, words, folder / f"{name}.log", folder / name / "agent")


def export(run: Path, iteration: int, output: Path) -> Job:
    """A checkpoint of a run as an agent."""
    words = [*COMMAND, "export", "--run", str(run), "--checkpoint", str(iteration), "--output", str(output)]
    return Job(f"{run.name} at iteration {iteration}", words, output.parent / "log.txt", output)


def write_yaml(path: Path, config: str, keys: Keys) -> None:
    """Write a shipped YAML with other values of these keys, of which null is the default."""
    tree = read_yaml(shipped_folder("configs") / config)
    override_all(tree, keys)
    tree = {key: value for key, value in tree.items() if value is not None}
    replace_file(path, yaml.safe_dump(tree, sort_keys=False))


def audit(config: Path, judges: list[str], likelihood: Path | None, folder: Path, words: tuple[str, ...]) -> Job:
    """An audit of the reward of a YAML; exit code 1 says that a hole was found, which is a result.

    likelihood: a language model that is not in the reward, if there is one.
    """
    output = folder / "audit.json"
    options = [word for judge in judges for word in ("--judge", judge)]
    options += ["--likelihood", str(likelihood)] if likelihood else []
    words_ = [*COMMAND, "audit", "--config", str(config), *options, "--output", str(output), *words]
    return Job("audit", words_, folder / "log.txt", output, codes=(0, 1))


def benchmark(size: str, dtype: str, folder: Path) -> Job:
    """Our benchmark with the settings of OpenRL's documentation, two iterations, into `folder`/benchmark.json."""
    output = folder / "benchmark.json"
    words = [str(ROOT / "scripts/benchmark.py"), "--workload", "W", "--size", size, "--dtype", dtype]
    return Job("benchmark", [*words, "--iterations", "2", "--json", str(output)], folder / "log.txt", output)


def program(name: str, plan: Path, log: Path, output: Path) -> Job:
    """A program of this folder, which reads its plan."""
    return Job(plan.stem, ["-m", f"experiments.dailydialog.{name}", str(plan)], log, output)
