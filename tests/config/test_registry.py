"""Names to classes: both ways to register, and what a wrong name or wrong arguments are told."""

import pytest

import rlhf_dialog.rewards  # noqa: F401
from rlhf_dialog.config.registry import Registry, RewardFactory
from rlhf_dialog.errors import UserError, nearest


class Politeness:
    def __init__(self, word: str = "please", weight: float = 1.0):
        self.word = word
        self.weight = weight


@pytest.fixture
def registry():
    registry = Registry("reward")
    registry.register("Politeness", Politeness)
    return registry


def test_direct_registration(registry):
    built = registry.create("Politeness", {"word": "thanks"})
    assert type(built) is Politeness
    assert (built.word, built.weight) == ("thanks", 1.0)


def test_decorator_registers_and_returns_the_class(registry):
    @registry.register("Short")
    class Short:
        pass

    assert isinstance(Short, type)
    assert type(registry.create("Short", {})) is Short


def test_a_later_class_replaces_an_earlier_one(registry):
    class Other:
        pass

    registry.register("Politeness", Other)
    assert type(registry.create("Politeness", {})) is Other


def test_registries_are_apart(registry):
    assert "Politeness" not in Registry("vec-info").classes


def test_unknown_name_names_the_nearest_and_the_known(registry):
    registry.register("Meteor", Politeness)
    with pytest.raises(UserError) as caught:
        registry.create("Politenes", {})
    message = str(caught.value)
    assert "unknown reward 'Politenes'" in message
    assert "did you mean 'Politeness'?" in message
    assert "Meteor, Politeness" in message


@pytest.mark.parametrize(
    ("args", "part"), [({"wrd": "x"}, "did you mean 'word'?"), ({"word": "x", "colour": 1}, "'colour'")]
)
def test_wrong_arguments_show_the_signature(registry, args, part):
    with pytest.raises(UserError) as caught:
        registry.create("Politeness", args)
    assert part in str(caught.value)
    assert "Politeness(word: str = 'please', weight: float = 1.0)" in str(caught.value)


def test_missing_argument(registry):
    class Needy:
        def __init__(self, path):
            self.path = path

    registry.register("Needy", Needy)
    assert "missing a required argument: 'path'" in registry.problem("Needy", {})


def test_problem_builds_nothing(registry):
    class Explosive:
        def __init__(self):
            raise AssertionError("built")

    registry.register("Explosive", Explosive)
    assert registry.problem("Explosive", {}) is None


def test_built_in_rewards_are_registered():
    assert {"NLPReward", "Intent", "Meteor", "LengthMatch", "CompositeReward"} <= set(RewardFactory.classes)
    assert "did you mean 'NLPReward'?" in RewardFactory.problem("NLPRewards", {})


def test_nothing_near_gives_no_suggestion(registry):
    assert "did you mean" not in registry.problem("xyz", {})
    assert nearest("xyz", ["Politeness"]) == ""
