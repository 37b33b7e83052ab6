"""Metrics of a user's own, which are registered by name and called on the finished dialogues of every system."""

from collections.abc import Callable
from typing import Any

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.base import BaseReward


class OwnMetric(BaseReward):
    """A registered function as something that can be asked for one number for each dialogue.

    >>> @MetricFactory.register("questions")
    ... def questions(dialogues):
    ...     return [float("?" in dialogue.response) for dialogue in dialogues]
    """

    name = "metric"

    def __init__(self, title: str, function: Callable[[list[Dialogue]], Any]):
        self.title, self.function = title, function

    def __call__(self, dialogues: list[Dialogue]) -> Any:
        """What the function returns."""
        return self.function(dialogues)
