"""A function and a Gymnasium environment as environments of the text protocol."""

import gymnasium
import numpy as np
import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.environments import Environment, SingleTurn
from rlhf_dialog.environments.adapters import FunctionUser, TextWrapper
from rlhf_dialog.environments.base import answer, open_episode
from rlhf_dialog.errors import UserError


def polite(messages):
    """Wants a goodbye after the second reply."""
    replies = [message["content"] for message in messages if message["role"] == "assistant"]
    if replies and "bye" in replies[-1]:
        return None
    return f"Yes , {len(messages)} ?"


def test_a_function_is_a_user():
    environment = FunctionUser(polite, reward=lambda messages: len(messages) / 2)
    assert open_episode(environment).prompt_turns == ["Yes , 0 ?"]
    assert answer(environment, "No .")[:4] == ("Yes , 2 ?", 0.0, False, False)
    text, reward, terminated, truncated, info = answer(environment, "Good bye .")
    assert (text, reward, terminated, truncated) == ("", 2.0, True, False)
    roles = [message["role"] for message in info["messages"]]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert [message["content"] for message in info["messages"]] == ["Yes , 0 ?", "No .", "Yes , 2 ?", "Good bye ."]
    assert open_episode(environment).prompt_turns == ["Yes , 0 ?"]


def test_a_function_that_goes_on_is_cut_off():
    environment = FunctionUser(polite, lambda messages: -1.0, max_turns=2)
    open_episode(environment)
    assert answer(environment, "No .")[1:4] == (0.0, False, False)
    assert answer(environment, "No .")[1:4] == (-1.0, False, True)


@pytest.mark.parametrize("returned", [3, None, b"x"])
def test_a_function_that_returns_something_else(returned):
    with pytest.raises(UserError, match=r"user <lambda>: returned .*; return a text"):
        open_episode(FunctionUser(lambda messages: returned))


def test_a_later_turn_that_is_something_else():
    environment = FunctionUser(lambda messages: len(messages) if messages else "Hi .")
    open_episode(environment)
    with pytest.raises(UserError, match="user <lambda>: returned 2; return a text"):
        answer(environment, "Ho .")


def test_a_function_that_raises_is_named_with_its_line():
    with pytest.raises(UserError, match=r"reset raised ZeroDivisionError: .* at .*test_adapters\.py:\d+$"):
        open_episode(FunctionUser(lambda messages: str(1 / 0)))


class Counter(gymnasium.Env):
    """The action is added up; 3 is the goal."""

    observation_space, action_space = gymnasium.spaces.Discrete(10), gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.total = int(self.np_random.integers(3))
        return self.total, {"seed": seed}

    def step(self, action):
        self.total += action
        return self.total, float(self.total == 3), self.total >= 3, False, {}


def test_a_gymnasium_environment_in_words():
    environment = TextWrapper(
        Counter(), lambda observation: f"We have {observation} .", lambda reply: reply.count("more")
    )
    first = open_episode(environment, 3).prompt_turns
    assert open_episode(environment, 3).prompt_turns == first == [f"We have {np.random.default_rng(3).integers(3)} ."]
    had = int(first[0].split()[2])
    assert answer(environment, "more " * (3 - had)) == ("We have 3 .", 1.0, True, False, {})


PROMPT = Dialogue(["Hi .", "Who is there ?"], reference="Ada .", act=1, meta={"index": 7})


def test_a_prompt_is_an_episode_of_one_step():
    environment: Environment = SingleTurn(PROMPT)
    text, info = environment.reset(seed=7)
    assert (text, info) == ("Who is there ?", {"prompt": PROMPT})
    assert environment.step("Ben .") == ("", 0.0, True, False, {})
    assert open_episode(environment) is PROMPT
