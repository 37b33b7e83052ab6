"""Text environments as Gymnasium sees them."""

import warnings
from random import Random

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from rlhf_dialog.environments.base import EpisodeLimits
from rlhf_dialog.environments.text_level import TextLevel, Utterance
from rlhf_dialog.errors import UserError


class Guess:
    """An environment that nobody here wrote: the policy has to say a digit. It takes options, and returns an own kind of info."""

    def reset(self, seed=None, options=None):
        self.digit = str((options or {}).get("digit", Random(seed).randrange(10)))
        return "Which digit ?", {"hint": [self.digit]}

    def step(self, reply):
        right = self.digit in reply
        return "Yes !" if right else "No .", float(right), right, False, {}


class Silent(Guess):
    """Another one, that knows no options."""

    def reset(self, seed=None):
        return super().reset(seed)


@pytest.mark.parametrize("environment", [Guess, Silent])
def test_gymnasium_checks_it(environment):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(TextLevel(environment()), skip_render_check=True)


def test_seeds_and_options_reach_the_environment():
    environment = TextLevel(Guess())
    infos = [environment.reset(seed=seed)[1] for seed in (3, 3, 4, 5, 6)]
    assert infos[0] == infos[1]
    assert len({str(info) for info in infos}) > 1
    assert environment.reset(options={"digit": 7})[1] == {"hint": ["7"]}
    assert environment.step("It is 7 .") == ("Yes !", 1.0, True, False, {})


def test_what_is_wrong_is_named():
    environment = Guess()
    environment.step = lambda reply: ("No .", 0.0, False, {})
    with pytest.raises(UserError, match="environment Guess: step returned"):
        TextLevel(environment).step("3")
    environment.reset = lambda seed=None: Random(0).shuffle(3)
    with pytest.raises(UserError, match=r"environment Guess: reset raised TypeError.*test_text_level\.py:\d+"):
        TextLevel(environment, EpisodeLimits(step_timeout_s=60)).reset()


class Echo:
    """Says what it hears, in brackets."""

    def reset(self, seed=None):
        return f"Grüß Gott {seed} ?", {}

    def step(self, reply):
        return f"„{reply}“", 1.0, reply == "bye", False, {}


@pytest.mark.parametrize("text", ["", "Grüß Gott , Müller !", "\n\t", "日本語", "a" * 10**5, "\ud800"])
def test_every_text_is_an_utterance(text):
    assert text in Utterance()


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


@pytest.mark.parametrize("vector", [SyncVectorEnv, pytest.param(AsyncVectorEnv, marks=pytest.mark.slow)])
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
