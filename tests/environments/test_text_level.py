"""Text environments as Gymnasium sees them."""

import warnings
from random import Random

import pytest
from gymnasium.utils.env_checker import check_env

from rlhf_dialog.environments.base import Limits
from rlhf_dialog.environments.text_level import TextLevel
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
        TextLevel(environment, Limits(step_timeout_s=60)).reset()
