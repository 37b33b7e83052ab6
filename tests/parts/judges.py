"""Rewards with models of their own, at any depth; the fixture `judges`."""

import pytest
import torch
from torch import nn

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards import BaseReward, CompositeReward
from rlhf_dialog.rewards.base import Part

DIALOGUES = [Dialogue(["Hi ."], response="Hello ."), Dialogue(["Bye ."], response="")]
DEPTHS = pytest.mark.parametrize("depth", [0, 1, 2, 3])
BERT = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


class Judge(BaseReward):
    """A reward of a user's with a frozen model of its own."""

    name = "judge"

    def __init__(self, folder="nowhere", bias=0.0):
        self.model = nn.Linear(1, 1).requires_grad_(False)
        nn.init.constant_(self.model.weight, 0.5)
        nn.init.constant_(self.model.bias, bias)

    def __call__(self, dialogues):
        lengths = torch.tensor([[float(len(d.response))] for d in dialogues], device=self.model.weight.device)
        return self.model(lengths).flatten().tolist()

    def frozen_models(self):
        return {"judge": self.model}

    @classmethod
    def model_paths(cls, args):
        return {"judge": args["folder"]}


class Halved(BaseReward):
    """A reward that asks another one."""

    name = "halved"

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, dialogues):
        return [score / 2 for score in self.inner(dialogues)]

    def children(self):
        return [self.inner]


class Words(BaseReward):
    name = "words"

    def __call__(self, dialogues):
        return [float(len(d.response.split())) for d in dialogues]


def summed(*rewards):
    reward = CompositeReward.__new__(CompositeReward)
    reward._set_parts([Part(0.5, one) for one in rewards])
    return reward


def inside(depth, reward):
    for _ in range(depth):
        reward = summed(Words(), reward)
    return reward


@pytest.fixture
def judges(monkeypatch):
    monkeypatch.setattr(RewardFactory, "classes", RewardFactory.classes | {"Judge": Judge, "Words": Words})


def yaml_inside(depth: int, *parts: dict) -> dict:
    for _ in range(depth):
        parts = ({"id": "CompositeReward", "args": {"parts": [{"id": "Words"}, *parts]}},)
    return parts[0]
