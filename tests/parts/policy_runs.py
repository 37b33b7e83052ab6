"""Small runs that train a dialogue policy on the cafes of `small_domain`."""

import json
from pathlib import Path
from typing import Any

from rlhf_dialog.task_oriented.runs.run import PolicyRun
from rlhf_dialog.task_oriented.runs.settings import PolicyConfig, load_policy_config
from tests.parts.small_domain import DATA

PPO_ARGS = {"hidden_sizes": [8], "ppo_epoch": 2, "minibatch_size": 32}
SMALL = {
    "error_rate": 0.15,
    "max_turns": 8,
    "batchsz": 50,
    "epoch": 6,
    "num_envs": 4,
    "eval_interval": 3,
    "eval_dialogues": 5,
    "save_interval": 2,
    "policy": {"id": "ppo", "args": PPO_ARGS},
    "experiment_name": "run",
}


def domain_file(folder: Path, **changes: Any) -> Path:
    """The domain as a file."""
    path = folder / "tea.json"
    path.write_text(json.dumps(DATA | changes), encoding="utf-8")
    return path


def policy_config(folder: Path, **changes: Any) -> PolicyConfig:
    """The settings of a run in `folder`/run."""
    path = folder / "tea.json"
    domain = path if path.is_file() else domain_file(folder)
    return load_policy_config(None, SMALL | {"domain": str(domain), "run_dir": str(folder)} | changes)


def policy_run(folder: Path, overwrite: bool = False, resume: Any = False, **changes: Any) -> PolicyRun:
    """A run that has not begun."""
    return PolicyRun(policy_config(folder, **changes), overwrite, resume)


def numbers(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what is measured in seconds."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/") and k != "FPS"} for line in lines]
