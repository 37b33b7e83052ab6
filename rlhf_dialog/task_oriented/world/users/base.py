"""What a simulated user is."""

from random import Random
from typing import Protocol

from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.goals import Goal


class User(Protocol):
    """A user with a goal. A turn that holds the act `bye` ends the dialogue.

    goal: what this user wants now; it changes in a dialogue when nothing fits, or when the user changes its mind
    """

    goal: Goal

    def begin(self, goal: Goal, rng: Random) -> list[Act]:
        """Begin a dialogue; returns the first turn, the answer to the system's `hello`. All chance comes from `rng`."""

    def answer(self, system_acts: list[Act]) -> list[Act]:
        """The user's next turn."""
