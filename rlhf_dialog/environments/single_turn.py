"""The environment whose user speaks once: the policy answers a prompt, and the episode ends."""

from typing import Any

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.environments.base import Step


class SingleTurn:
    """One episode: the prompt and one reply. The step's reward is 0; the reward class scores the reply.

    >>> environment = SingleTurn(Dialogue(["Hi .", "Who is there ?"], reference="Ada ."))
    >>> text, info = environment.reset()
    >>> text, info["prompt"].prompt_turns, info["prompt"].reference
    ('Who is there ?', ['Hi .', 'Who is there ?'], 'Ada .')
    >>> environment.step("Ben .")
    ('', 0.0, True, False, {})
    """

    def __init__(self, prompt: Dialogue):
        self.prompt = prompt

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """The prompt's last turn; nothing is random, so the seed has no effect."""
        return self.prompt.prompt_turns[-1], {"prompt": self.prompt}

    def step(self, reply: str) -> Step:
        """The end of the episode."""
        return "", 0.0, True, False, {}
