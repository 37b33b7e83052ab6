"""The space of texts, alone and in Gymnasium's vector environments."""

import gymnasium
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from rlhf_dialog.environments.spaces import Utterance
from rlhf_dialog.environments.text_level import TextLevel
from rlhf_dialog.errors import UserError


class Echo:
    """Says what it hears, in brackets."""

    def reset(self, seed=None):
        return f"Grüß Gott {seed} ?", {}

    def step(self, reply):
        return f"„{reply}“", 1.0, reply == "bye", False, {}


@pytest.mark.parametrize("text", ["", "Grüß Gott , Müller !", "\n\t", "日本語", "a" * 10**5, "\ud800"])
def test_every_text_is_an_utterance(text):
    assert text in Utterance()


@pytest.mark.parametrize("thing", [None, 3, b"text", ["text"], ("text",)])
def test_nothing_else_is(thing):
    assert thing not in Utterance()


def test_samples_follow_the_seed():
    samples = [[space.sample() for _ in range(20)] for space in (Utterance(7), Utterance(7), Utterance(8))]
    assert samples[0] == samples[1] != samples[2]
    assert len(set(samples[0])) > 15
    assert all(text in Utterance() for text in samples[0])
    space = Utterance()
    space.seed(7)
    assert [space.sample() for _ in range(20)] == samples[0]


def test_a_sample_has_no_mask():
    with pytest.raises(UserError, match="neither mask nor probability"):
        Utterance().sample(mask=[1])


def test_texts_are_json():
    space = Utterance()
    assert space.from_jsonable(space.to_jsonable(["ü", ""])) == ["ü", ""]
    assert space == Utterance(3) != gymnasium.spaces.Text(3)
    assert len(batch_space(space, 3).sample()) == 3


@pytest.mark.parametrize("vector", [SyncVectorEnv, pytest.param(AsyncVectorEnv, marks=pytest.mark.thorough)])
def test_texts_arrive_whole_in_vectors(vector):
    arguments = {} if vector is SyncVectorEnv else {"shared_memory": False}
    environments = vector([lambda: TextLevel(Echo())] * 2, **arguments)
    try:
        assert environments.reset(seed=4)[0] == ("Grüß Gott 4 ?", "Grüß Gott 5 ?")
        texts, rewards, terminated, _, _ = environments.step(("süß " * 50, "bye"))
        assert texts == (f"„{'süß ' * 50}“", "„bye“")
        assert (rewards.tolist(), terminated.tolist()) == ([1.0, 1.0], [False, True])
    finally:
        environments.close()


def test_shared_memory_is_refused():
    """With `gymnasium.spaces.Text` it returns garbage."""
    with pytest.raises(ValueError, match="shared_memory=False"):
        AsyncVectorEnv([lambda: TextLevel(Echo())])
