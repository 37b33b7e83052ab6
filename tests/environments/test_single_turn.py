"""A prompt is an episode of one step."""

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.environments import Environment, SingleTurn
from rlhf_dialog.environments.base import open_episode

PROMPT = Dialogue(["Hi .", "Who is there ?"], reference="Ada .", act=1, meta={"index": 7})


def test_a_prompt_is_an_episode_of_one_step():
    environment: Environment = SingleTurn(PROMPT)
    text, info = environment.reset(seed=7)
    assert (text, info) == ("Who is there ?", {"prompt": PROMPT})
    assert environment.step("Ben .") == ("", 0.0, True, False, {})
    assert open_episode(environment) is PROMPT
