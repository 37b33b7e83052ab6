"""A dialogue as text: its turns, its rendering to a prompt, and the way back from generated text. No tensors here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Dialogue:
    """One episode: what was said, what the policy answered, and what a person answered there.

    >>> Dialogue(
    ...     prompt_turns=["Do you have a table for two ?", "Yes . Would you like to sit outside ?"],
    ...     response="Inside , please .",
    ...     reference="No , inside please . It is cold .",
    ...     act=3,
    ... )
    """

    prompt_turns: list[str]  # the last `context_size` turns, oldest first, stripped
    response: str = ""  # what the policy wrote, cut at the separator, stripped; empty before the rollout
    reference: str | None = None  # the turn that followed in the data
    act: int | None = None  # the reference's act: 1 inform, 2 question, 3 directive, 4 commissive
    truncated: bool = False  # the response was cut at `max_new_tokens`
    meta: dict[str, Any] = field(
        default_factory=dict
    )  # whatever else the data says, e.g. {"split": "test", "index": 7}
    references: list[str] = field(default_factory=list)  # all acceptable ones, `reference` first; empty without any


def render_prompt(turns: Sequence[str], separator: str) -> str:
    """`a <EOU> b <EOU>`: every turn, the last one too, is closed by the separator."""
    return f" {separator} ".join(turns) + f" {separator}"


def render_reply(turn: str) -> str:
    """The text that follows a prompt: a space, then the turn."""
    return " " + turn


def render_target(turn: str, separator: str) -> str:
    """What supervised fine-tuning teaches after a prompt (the end-of-text token is added as an id)."""
    return f"{render_reply(turn)} {separator}"


def fit_turns(turns: Sequence[str], separator: str, encode: Callable[[str], list[int]], max_length: int) -> list[int]:
    """Token ids of the prompt, at most `max_length`: whole oldest turns go first, then tokens from the left."""
    return fit_newest(turns, lambda kept: encode(render_prompt(kept, separator)), max_length)


def fit_newest(
    turns: Sequence[str], encode: Callable[[Sequence[str]], list[int]], max_length: int, head: int = 0
) -> list[int]:
    """The ids that `encode` gives the newest turns, at most `max_length`; the first `head` of them are never cut off."""
    for start in range(len(turns)):
        ids = encode(turns[start:])
        if len(ids) <= max_length:
            return ids
    return ids[:head] + ids[len(ids) - max_length + head :]


def cut_at_separator(text: str, separator: str) -> str:
    """The text that rewards and metrics see: what stands before the first separator, stripped."""
    return text.split(separator, 1)[0].strip()
