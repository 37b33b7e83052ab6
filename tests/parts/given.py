"""Three dialogues, and a reward that gives what it was given; the fixture `own_rewards`."""

import pytest

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards import BaseReward

DIALOGUES = [
    Dialogue(["Hi ."], "one two", "a b c d", act=1),
    Dialogue(["Hi ."], "", "a b", act=2),
    Dialogue(["Hi ."], "the cat sat", "the dog sat", act=3),
]


class Given(BaseReward):
    """Returns what it was given; raises it when it is an exception."""

    needs = ("act",)

    def __init__(self, value=0.0, per_dialogue=True):
        self.value = value
        self.per_dialogue = per_dialogue

    def __call__(self, dialogues):
        if isinstance(self.value, BaseException):
            raise_deep(self.value)
        return [self.value] * len(dialogues) if self.per_dialogue else self.value


def raise_deep(error):
    raise error  # the deepest line in this file


class Broken(BaseReward):
    def __init__(self, number="x"):
        self.number = int(number)


@pytest.fixture
def own_rewards(monkeypatch):
    """Given and Broken are registered."""
    monkeypatch.setattr(RewardFactory, "classes", {**RewardFactory.classes, "Given": Given, "Broken": Broken})
