"""Names to classes: both ways to register, and what a wrong name or wrong arguments are told."""

import pytest

from rlhf_dialog.config.registry import Registry


class Politeness:
    def __init__(self, word: str = "please", weight: float = 1.0):
        self.word = word
        self.weight = weight


@pytest.fixture
def registry():
    registry = Registry("reward")
    registry.register("Politeness", Politeness)
    return registry


def test_both_ways_to_register(registry):
    built = registry.create("Politeness", {"word": "thanks"})
    assert (type(built), built.word, built.weight) == (Politeness, "thanks", 1.0)

    @registry.register("Politeness")  # a later class replaces an earlier one
    class Short:
        pass

    assert type(registry.create("Politeness", {})) is Short
    assert "Politeness" not in Registry("vec-info").classes
