"""Names to classes: both ways to register. `test_refusals.py` has what a wrong name or wrong arguments are told."""

import pytest

from rlhf_dialog.config.registry import Registry
from rlhf_dialog.errors import UserError


class Politeness:
    def __init__(self, word: str = "please", weight: float = 1.0):
        self.word = word
        self.weight = weight


def test_both_ways_to_register():
    registry = Registry("reward")
    registry.register("Politeness", Politeness)
    built = registry.create("Politeness", {"word": "thanks"})
    assert (type(built), built.word, built.weight) == (Politeness, "thanks", 1.0)

    @registry.register("Politeness")  # a later class replaces an earlier one
    class Short:
        pass

    assert type(registry.create("Politeness", {})) is Short
    assert "Politeness" not in Registry("vec-info").classes
    with pytest.raises(UserError, match="did you mean 'Politeness'"):
        registry.create("Politenes", {})
