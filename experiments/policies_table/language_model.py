"""The row `language_model` of the table of policies: a language model that talks to the same kind of user in words.

Words have no error channel, so the row is there for the error rate 0 alone. What is said in words has dialogues of its own; the
difference from the handcrafted policy is taken where that one speaks in words too.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from experiments.policies_table.table import LANGUAGE_MODEL, Cell, Plan
from rlhf_dialog.commands.options import parse_options
from rlhf_dialog.environments.base import baseline_names
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.dialogues import Played, dialogue_numbers
from rlhf_dialog.task_oriented.commands.evaluate_dialogues import (
    AT_ONCE,
    EvaluatePolicyOptions,
    choose_environment,
    is_language_model,
)


def language_model_cell(folder: Path, error_rates: list[float]) -> Cell:
    """The one cell of the row. Raises UserError when there is nothing to measure."""
    if not is_language_model(folder):
        raise UserError(
            f"--language_model {folder}: holds no language model; name RUN/agent of a run with an environment"
        )
    if 0.0 not in error_rates:
        raise UserError(
            "--language_model: words have no error channel; add 0 to --errors, or leave the language model out"
        )
    return Cell(LANGUAGE_MODEL, 0.0, 0)


def known_of(folder: Path, plan: Plan, domain_hash: str) -> dict[str, Any]:
    """All that decides the numbers of the row."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".json"))
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return {
        **{"policy": LANGUAGE_MODEL, "error_rate": 0.0, "seed": 0, "files": hashes},
        **{"user": plan.user, "domain_hash": domain_hash, "test_dialogues": plan.test_dialogues},
    }


def measure_language_model(folder: Path, plan: Plan) -> list[dict[str, Any]]:
    """Its only point, with the numbers of the handcrafted policy in words. Raises UserError for what cannot be used."""
    from rlhf_dialog.models.chat_agent import ChatAgent
    from rlhf_dialog.runs.data_source import build_simulated, play_dialogues, spoken

    words = ["--agent", str(folder), "--domain", plan.domain, "--user", plan.user]
    options = parse_options(EvaluatePolicyOptions, words)
    source, numbers = build_simulated(choose_environment(options), 0, "test"), range(plan.test_dialogues)
    agent = ChatAgent.load(folder)
    parameters = sum(x.numel() for x in agent.policy.lm.parameters())
    point = {"mark": 0, "training": _training(folder) | {"parameters": parameters, "metrics": {}}}
    point["test"] = _numbers(play_dialogues(agent, source, numbers, AT_ONCE))
    if "handcrafted" in baseline_names(source.environments[0]):
        point["handcrafted"] = _numbers(spoken("handcrafted", source, numbers))
    return [point]


def _numbers(found: list[Played]) -> dict[str, list[float]]:
    numbers = dialogue_numbers(found)
    return {name: np.round(numbers[name], 6).tolist() for name in ("success", "reward", "turns")}


def _training(folder: Path) -> dict[str, Any]:
    """What the run beside the agent says of its dialogues and iterations; None where nothing is known."""
    from rlhf_dialog.runs.metrics_file import read_metrics

    path, row = folder.resolve().parent / "metrics.jsonl", dict[str, Any]()
    if path.is_file():
        row = next(iter(reversed(read_metrics(path))), {})
    counts = {"dialogues": row.get("episodes"), "turns": None, "updates": row.get("iteration")}
    return {**counts, "cpu_seconds": None, "wall_seconds": None}
