"""Environments of a function that answers messages, of Gymnasium environments without text, and of one prompt."""

from collections.abc import Callable
from typing import Any

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.environments.base import Step
from rlhf_dialog.errors import UserError

Message = dict[str, str]  # role: `user` or `assistant`, the policy; content: text


class FunctionUser:
    """A function `user(messages) -> str | None` as environment: it gets all that was said, and None ends the dialogue.

    reward: what a dialogue is worth when it ends, from its messages; max_turns: replies after which it is cut off
    """

    def __init__(
        self,
        user: Callable[[list[Message]], str | None],
        reward: Callable[[list[Message]], float] = lambda messages: 0.0,
        max_turns: int = 25,
    ):
        self.user, self.reward, self.max_turns = user, reward, max_turns

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """The answer to an empty list; the function gets no seed."""
        self.messages: list[Message] = []
        return self._heard() or "", {}

    def step(self, reply: str) -> Step:
        """The function's next turn; the reward is paid at the end."""
        self.messages.append({"role": "assistant", "content": reply})
        ended = (text := self._heard()) is None
        cut = not ended and len(self.messages) > 2 * self.max_turns
        return text or "", self.reward(self.messages) if ended or cut else 0.0, ended, cut, {"messages": self.messages}

    def _heard(self) -> str | None:
        text = self.user([dict(message) for message in self.messages])
        if not isinstance(text, str | None) or (text is None and not self.messages):
            name = getattr(self.user, "__name__", type(self.user).__name__)
            remedy = "return a text (None ends the dialogue, after the first turn)"
            raise UserError(f"user {name}: returned {text!r}; {remedy}")
        self.messages += [] if text is None else [{"role": "user", "content": text}]
        return text


class TextWrapper:
    """A Gymnasium environment whose observations are put into words, and whose actions are read from the replies.

    to_text: observation -> what the policy reads; parse: reply -> action
    """

    def __init__(self, environment: Any, to_text: Callable[[Any], str], parse: Callable[[str], Any]):
        self.environment, self.to_text, self.parse = environment, to_text, parse

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The first observation in words."""
        observation, info = self.environment.reset(seed=seed, options=options)
        return self.to_text(observation), info

    def step(self, reply: str) -> Step:
        """The next observation in words."""
        observation, reward, terminated, truncated, info = self.environment.step(self.parse(reply))
        return self.to_text(observation), reward, terminated, truncated, info


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
