"""Whole runs on a tiny model: fixtures (`world`, `rewards`, `run`, `refused`) and what is left."""

import json
import sys
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from rlhf_dialog import RewardFactory, main
from tests.parts import agents, tiny
from tests.parts.processes import load_file

CLOCKS = ("time/", "FPS")
REWARDS = """
import random
import numpy
import torch
from rlhf_dialog import BaseReward

class Vowels(BaseReward):
    def __call__(self, dialogues):
        return [sum(letter in "aeiou" for letter in d.response) / 10 for d in dialogues]

class Broken(BaseReward):
    calls = 0

    def __init__(self, at: int = 1):
        self.at = at

    def __call__(self, dialogues):
        Broken.calls += 1
        if Broken.calls == self.at:
            return self.deeper({"a": 1})
        return Vowels()(dialogues)

    def deeper(self, mapping):
        return mapping["politeness"]

class Moody(BaseReward):
    # draws from all the generators of random numbers
    def __call__(self, dialogues):
        drawn = random.random() + numpy.random.random() + torch.rand(()).item()
        return [drawn + value for value in Vowels()(dialogues)]

class Planned(BaseReward):
    # 0.5 in training; on validation prompts the next of the planned values each time, and a list of what it saw
    seen = []
    values = []

    def __init__(self):
        Planned.seen.clear()

    def __call__(self, dialogues):
        if dialogues[0].meta["split"] == "train":
            return [0.5] * len(dialogues)
        Planned.seen.append(dialogues)
        return [self.values[len(Planned.seen) - 1]] * len(dialogues)

class Unbuildable(BaseReward):
    def __init__(self):
        raise FileNotFoundError("words.txt")
"""
BROKEN_LINE = 1 + REWARDS.split('return mapping["politeness"]')[0].count("\n")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a model, its tokenizer and data; nothing in it changes."""
    root = tmp_path_factory.mktemp("world")
    agents.save(root / "model")
    tiny.write_data(root / "data", 6)
    return root


@pytest.fixture
def rewards(tmp_path_factory, monkeypatch):
    """A user's file of rewards, imported and registered as train_ppo.py would; returns its path."""
    monkeypatch.setattr(RewardFactory, "classes", dict(RewardFactory.classes))
    path = tmp_path_factory.mktemp("user") / "my_rewards.py"
    path.write_text(REWARDS, encoding="utf-8")
    monkeypatch.setitem(sys.modules, "my_rewards", None)  # load_file changes it until the test ends
    module = load_file(path, "my_rewards")
    for name in ("Vowels", "Broken", "Moody", "Planned", "Unbuildable"):
        RewardFactory.register(name, getattr(module, name))
    return path


def settings(world: Path) -> dict:
    return {
        "model_path": str(world / "model"),
        "env": {"args": {"data_path": str(world / "data")}},
        "reward_class": {"id": "CompositeReward", "args": {"parts": [{"id": "LengthMatch", "weight": 0.5}]}},
        "rollout_batch_size": 8,
        "num_mini_batch": 2,
        "ppo_epoch": 2,
        "max_new_tokens": 6,
        "max_prompt_length": 60,
        "max_iterations": 2,
        "lr": "1e-3",
        "critic_lr": "1e-3",
        "sample_interval": 2,
        "device": "cpu",
    }


@pytest.fixture
def run(world, rewards, tmp_path, monkeypatch):
    """`run("--key", "value")` runs main in an empty folder that holds ppo.yaml; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "ppo.yaml").write_text(yaml.safe_dump(settings(world)), encoding="utf-8")

    def run(*words: str) -> int:
        return main(["--config", "ppo.yaml", *words])

    return run


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def without_clocks(folder: Path) -> list[dict]:
    return [{key: value for key, value in row.items() if not key.startswith(CLOCKS)} for row in rows(folder)]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def planned(*values: float) -> tuple[str, str]:
    """The reward whose first call is the check before training, and whose next ones are the evaluations."""
    sys.modules["my_rewards"].Planned.values = [0.0, *values]
    return "--reward_class", "{id: Planned}"


@pytest.fixture
def refused(run, tmp_path, capsys):
    """Runs what must end with code 2, one message and nothing written; returns the message."""

    def refused(*words: str) -> str:
        before = tree(tmp_path)
        assert run(*words) == 2
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        assert captured.err.count("error: ") == 1
        assert tree(tmp_path) == before
        return captured.err[captured.err.index("error: ") :]

    return refused
