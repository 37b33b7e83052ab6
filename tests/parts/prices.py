"""A reward with a life in a run: a price that adapts; the fixture `price` registers it."""

import threading

import pytest

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.rewards import BaseReward

ASKED: list = []  # what all prices were told: purpose, iteration, whether in the main thread


class Price(BaseReward):
    """A price on letters that rises while responses are longer than two, as rollouts show; None for every third, if picky."""

    name = "price"
    told = ASKED

    def __init__(self, picky: bool = False):
        self.coef, self.moves, self.picky = 1.0, False, picky

    def begin_scoring(self, purpose, iteration):
        self.moves = purpose == "rollout"
        Price.told.append((purpose, iteration, threading.current_thread() is threading.main_thread()))

    def __call__(self, dialogues):
        lengths = [len(dialogue.response) for dialogue in dialogues]
        values = [-self.coef * length / 10 for length in lengths]
        if self.moves:
            self.coef *= 1 + (sum(lengths) / len(lengths) - 2) / 100
        return [None if self.picky and i % 3 == 2 else value for i, value in enumerate(values)]

    def metrics(self):
        return {"coef": self.coef}

    def state_dict(self):
        return {"coef": self.coef}

    def load_state_dict(self, state):
        self.coef = state["coef"]


@pytest.fixture
def price(monkeypatch):
    """Price is registered and has heard nothing."""
    monkeypatch.setattr(RewardFactory, "classes", RewardFactory.classes | {"Price": Price})
    Price.told.clear()


def priced(*coefs):
    found = [Price() for _ in coefs]
    for one, coef in zip(found, coefs, strict=True):
        one.coef = coef
    return found
