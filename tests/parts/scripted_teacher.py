"""A person as a table, to try out what a policy learns from rewards: what is said, and which answer is right."""

from collections.abc import Mapping
from random import Random

from rlhf_dialog.task_oriented.world.users.teacher import PersonTurn


class ScriptedTeacher:
    """Says a random line of the table in each turn; the right answer is worth 1, another one -1.

    answers: what is said -> the sentence of the system that is right
    wrong: share of the rewards that are given the wrong way round
    turns: answers in each dialogue
    """

    each_answer = True

    def __init__(self, answers: Mapping[str, str], rng: Random, wrong: float = 0.0, turns: int = 5):
        self.answers, self.rng, self.wrong, self.turns = answers, rng, wrong, turns
        self.left = False

    def begin(self, about: str, greeting: str) -> PersonTurn:
        """A line of the table."""
        self.rest = self.turns
        return PersonTurn(self._line())

    def answer(self, sentence: str, last: bool = False) -> PersonTurn:
        """Reward the answer; after the last one the dialogue ends."""
        is_right = sentence == self.answers[self.said]
        is_wrong_way = self.rng.random() < self.wrong
        self.rest -= 1
        ends = last or self.rest <= 0
        return PersonTurn("" if ends else self._line(), 1.0 if is_right != is_wrong_way else -1.0, ends)

    def judge(self, verdict: str) -> float | None:
        """None: each answer was rewarded."""
        return None

    def _line(self) -> str:
        self.said = self.rng.choice(list(self.answers))
        return self.said
