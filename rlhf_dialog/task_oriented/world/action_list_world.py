"""A dialogue in words whose system chooses from a list of actions, and whose user rewards what it chooses."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.task_oriented.world.action_list import ActionList
from rlhf_dialog.task_oriented.world.states import State, Turn
from rlhf_dialog.task_oriented.world.users.teacher import Teacher, given

Observation = NDArray[np.float32]


class SpokenActions:
    """One step is one action and what the teacher says then; it is worth what the teacher gave for it.

    Observations are states of the turns so far. The dialogue ends with an action that ends it, by the teacher, or after
    `max_turns` actions. `info` at the end is that of `Taught`; success is a sum of rewards above 0.
    """

    def __init__(self, actions: ActionList, teacher: Teacher, state: State, max_turns: int):
        self.actions, self.teacher, self.state, self.max_turns = actions, teacher, state, max_turns
        self.names = actions.names
        self.observation_space = SimpleNamespace(shape=(state.size,))
        self.action_space = SimpleNamespace(n=len(self.names))

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
        """Begin a dialogue with the teacher's first words; nothing is random."""
        self.rewards: list[float | None] = []
        self.turns: list[Turn] = [("", self.teacher.begin("", "").text)]
        return self.state(self.turns), self._seen()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Say the action's sentence, and hear the teacher."""
        if self.teacher.left:
            return self.state(self.turns), 0.0, False, True, self._ended()
        chosen = self.actions.actions[int(action)]
        said = self.teacher.answer(chosen.sentence, last=chosen.ends)
        self.rewards.append(said.reward)
        self.turns.append((chosen.name, said.text))
        terminated = not self.teacher.left and (chosen.ends or said.ends)
        truncated = not terminated and (self.teacher.left or len(self.turns) > self.max_turns)
        info = self._ended() if terminated or truncated else self._seen()
        return self.state(self.turns), given(self.rewards[len(self.turns) - 2 :]), terminated, truncated, info

    def _seen(self) -> dict[str, Any]:
        taken = [name for name, _ in self.turns[1:]]
        return {"action_mask": np.array(self.actions.mask(taken, self.turns[-1][1]))}

    def _ended(self) -> dict[str, Any]:
        left = self.teacher.left
        if not (left or self.teacher.each_answer):
            self.rewards.append(self.teacher.judge(""))
        known = {"rewards": self.rewards, "cost": 0.0, "left": left, "success": given(self.rewards) > 0}
        return self._seen() | known | {"turns": self.turns}
