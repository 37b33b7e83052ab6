"""How the stages call other commands: the one place that knows their options."""

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from experiments.dailydialog.jobs import ROOT, Job
from experiments.dailydialog.sizes import Keys
from rlhf_dialog.atomic_files import replace_file
from rlhf_dialog.config.loading import override_all, read_yaml, shipped_folder

COMMAND = ["-m", "rlhf_dialog"]
RESUME_PPO = ["--resume", "auto"]
RESUME_SUPERVISED = ["--resume", "auto"]


def supervised(command: str, config: str, keys: Keys, folder: Path) -> Job:
    """A supervised training into `folder`/model."""
    output = folder / "model"
    words = [*COMMAND, command, "--config", str(shipped_folder("configs") / config), *RESUME_SUPERVISED]
    words += [word for name, value in (keys | {"output": str(output)}).items() for word in (f"--{name}", _word(value))]
    return Job(folder.name, words, folder / "log.txt", output)


def clear_partial(folder: Path) -> None:
    """Remove the unfinished output of a killed supervised training, which writes another one; its checkpoints stay."""
    for path in folder.glob(".model.partial"):
        shutil.rmtree(path)


def ppo(name: str, config: str, keys: Keys, folder: Path) -> Job:
    """A run of PPO in `folder`/`name`, with a YAML of its own beside it."""
    path = folder / f"{name}.yaml"
    tree = write_yaml(path, config, keys | {"run_dir": str(folder), "experiment_name": name})
    words = [*COMMAND, "train", "--config", str(path), *RESUME_PPO]
    tokens = None if tree.get("max_iterations") else tree.get("total_time_steps")
    return Job(name, words, folder / f"{name}.log", folder / name / "agent", tokens=tokens)


def export(run: Path, iteration: int, output: Path) -> Job:
    """A checkpoint of a run as an agent."""
    words = [*COMMAND, "export", "--run", str(run), "--checkpoint", str(iteration), "--output", str(output)]
    return Job(f"{run.name} at iteration {iteration}", words, output.parent / "log.txt", output)


def write_yaml(path: Path, config: str, keys: Keys) -> dict[str, Any]:
    """Write a shipped YAML with other values of these keys, of which null is the default; returns it."""
    tree = read_yaml(shipped_folder("configs") / config)
    override_all(tree, keys)
    tree = {key: value for key, value in tree.items() if value is not None}
    replace_file(path, yaml.safe_dump(tree, sort_keys=False))
    return tree


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
    words = [
        str(ROOT / "scripts/benchmark.py"),
        "--workload",
        "W",
        "--size",
        size,
        "--dtype",
        dtype,
        "--iterations",
        "2",
    ]
    return Job("benchmark", [*words, "--json", str(output)], folder / "log.txt", output)


def program(name: str, plan: Path, log: Path, output: Path) -> Job:
    """A program of this folder, which reads its plan."""
    return Job(plan.stem, ["-m", f"experiments.dailydialog.{name}", str(plan)], log, output)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
