"""Names to classes: both ways to register, and what a wrong name or wrong arguments are told."""

import pytest

from rlhf_dialog.config.registry import Registry
from rlhf_dialog.errors import UserError


class Politeness:
    def __init__(self, word: str = "please", weight: float = 1.0):
        self.word = word
        self.weight = weight


class Explosive:
    def __init__(self, path="here"):
        raise AssertionError("built")


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


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("Politenes", {}, ["'Politenes'", "did you mean 'Politeness'?", "Explosive, Politeness"]),
        ("Politeness", {"wrd": "x"}, ["did you mean 'word'?", "(word: str = 'please', weight: float = 1.0)"]),
        ("Politeness", {"word": "x", "colour": 1}, ["'colour'"]),
    ],
)
def test_a_wrong_name_or_argument_and_nothing_is_built(registry, name, args, words):
    registry.register("Explosive", Explosive)
    assert registry.problem("Explosive", {"path": "x"}) is None
    with pytest.raises(UserError) as caught:
        registry.create(name, args)
    assert [word for word in words if word not in str(caught.value)] == []
