"""Mutated files of every kind that a path accepts: they are read, or a UserError of one sentence says why."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from rlhf_dialog.data.sources import load_records
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.runs.publish import package
from rlhf_dialog.task_oriented.commands.evaluate_policy import EvaluatePolicyOptions
from rlhf_dialog.task_oriented.commands.evaluate_policy import run as evaluate_policy
from rlhf_dialog.task_oriented.domains import load_domain
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.built_in import build_policy
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler
from rlhf_dialog.task_oriented.runs.checkpoint import save_policy_agent
from rlhf_dialog.task_oriented.runs.training_world import open_world
from rlhf_dialog.task_oriented.world.action_list_world import read_actions
from tests.parts import agents
from tests.parts.damage import wreck
from tests.parts.data_files import jsonl_bytes, rows_of
from tests.parts.policy_runs import domain_file

POLICY = {"id": "gp_sarsa", "args": {"max_points": 20}}


@dataclass(frozen=True)
class Kind:
    """files: patterns of those that are damaged."""

    make: Callable[[Path], object]
    read: Callable[[Path], object]
    files: tuple[str, ...]


def policy_agent(folder: Path) -> None:
    """The agent of a policy that has learned a little."""
    settings = {"domain": str(domain_file(folder)), "error_rate": 0.1, "user": "friendly", "max_turns": 5}
    scene = open_world(settings)
    policy = build_policy(
        POLICY["id"], POLICY["args"], PolicySpec(scene.num_features, len(scene.names), 0, scene.domain)
    )
    with closing(Sampler(scene.make, 0, 2)) as sampler:
        for episode in sampler.sample(policy, 40):
            policy.observe(episode)
    policy.update()
    save_policy_agent(folder / "agent", policy, settings | {"policy": POLICY}, scene)


def evaluate(folder: Path) -> None:
    output = folder / "evaluation.json"
    evaluate_policy(EvaluatePolicyOptions(agent=folder / "agent", dialogues=2, output=output))


def language_model(folder: Path) -> None:
    agents.save(folder, {"max_new_tokens": 4, "max_prompt_length": 100})


def talk(folder: Path) -> None:
    ChatAgent.load(folder).chat("Hello there .", ["Hi .", "Good ."])


def evaluation(folder: Path) -> None:
    numbers = {"mean": 0.3, "low": 0.2, "high": 0.4}
    rows = {name: {"score": numbers, "meteor": numbers} for name in ("repeat_last_turn", "true_replies")}
    settings = {"split": "test", "num_prompts": 50, "baseline": "start", "data_path": "d", "notes": ["New."]}
    one = {"score": numbers, "meteor": numbers}
    tree = {"before": one, "after": one, "difference": one, "baselines": rows, "settings": settings}
    (folder / "evaluation.json").write_text(json.dumps(tree))
    reward = {"id": "Meteor", "args": {}}
    config = {"model_path": "m", "lr": 3e-5, "env": {"args": {"data_path": "d"}}, "reward_class": reward}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    agents.save(folder / "agent", {"max_new_tokens": 4})


def card(folder: Path) -> None:
    package(folder / "agent", "a/b", "--agent", folder / "evaluation.json")


def action_list(folder: Path) -> None:
    listed: list[dict[str, Any]] = [{"name": "hello", "sentence": "Hello .", "first": True}]
    listed += [{"name": "bye", "sentence": "Goodbye .", "words": ["bye"], "ends": True, "not_after": ["hello"]}]
    listed.append({"name": "again", "sentence": "Pardon ?"})
    (folder / "actions.json").write_text(json.dumps(listed))


KINDS = {
    "policy": Kind(policy_agent, evaluate, ("agent/*",)),
    "language model": Kind(language_model, talk, ("*.json", "*.safetensors")),
    "jsonl": Kind(
        lambda folder: (folder / "a.jsonl").write_bytes(jsonl_bytes(rows_of("train"))),
        lambda folder: load_records(str(folder / "a.jsonl"), "train"),
        ("a.jsonl",),
    ),
    "domain": Kind(domain_file, lambda folder: load_domain(folder / "tea.json"), ("tea.json",)),
    "evaluation": Kind(evaluation, card, ("config.yaml", "evaluation.json")),
    "action list": Kind(action_list, lambda folder: read_actions(folder / "actions.json").actions, ("*.json",)),
}
QUICK = ("domain", "jsonl", "evaluation", "action list")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in KINDS]
)
def test_a_mutated_file_is_read_or_says_what_is_wrong(name, tmp_path):
    kind, whole, read = KINDS[name], tmp_path / "whole", 0
    whole.mkdir()
    kind.make(whole)
    kind.read(shutil.copytree(whole, tmp_path / "read"))
    for seed in range(20):
        target = shutil.copytree(whole, tmp_path / str(seed))
        files = sorted(path for pattern in kind.files for path in target.glob(pattern) if path.is_file())
        done = wreck(Random(seed).choice(files), seed)
        try:
            kind.read(target)
            read += 1
        except UserError as error:
            if len(str(error)) > 2000:
                pytest.fail(f"{seed} {done}: long")
        except Exception as error:
            pytest.fail(f"{seed} {done}: {type(error).__name__}: {error}"[:300])
        shutil.rmtree(target)
    assert read < 20
