"""A dialogue in words whose system chooses from a list of actions, and whose user rewards what it chooses."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.task_oriented.world.action_list import ActionList
from rlhf_dialog.task_oriented.world.states import StateFunction, Turn
from rlhf_dialog.task_oriented.world.users.teacher import Teacher, sum_rewards

Observation = NDArray[np.float32]


class ActionListWorld:
    """One step is one action and what the teacher says then; it is worth what the teacher gave for it.

    Observations are states of the turns so far. The dialogue ends with an action that ends it, by the teacher, or after
    `max_turns` actions. `info` at the end is that of `PersonWorld`; success is a sum of rewards above 0.
    """

    def __init__(self, actions: ActionList, teacher: Teacher, state: StateFunction, max_turns: int):
        self.actions = actions
        self.teacher = teacher
        self.state = state
        self.max_turns = max_turns
        self.names = actions.names
        self.observation_space = SimpleNamespace(shape=(state.size,))
        self.action_space = SimpleNamespace(n=len(self.names))

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
        """Begin a dialogue with the teacher's first words; nothing is random."""
        self.rewards: list[float | None] = []
        self.turns: list[Turn] = [("", self.teacher.begin("", "").text)]
        return self.state(self.turns), self._info()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Say the action's sentence, and hear the teacher."""
        if self.teacher.left:
            return self.state(self.turns), 0.0, False, True, self._final_info()
        chosen = self.actions.actions[int(action)]
        turn = self.teacher.answer(chosen.sentence, last=chosen.ends)
        self.rewards.append(turn.reward)
        self.turns.append((chosen.name, turn.text))
        terminated = not self.teacher.left and (chosen.ends or turn.ends)
        truncated = not terminated and (self.teacher.left or len(self.turns) > self.max_turns)
        info = self._final_info() if terminated or truncated else self._info()
        return self.state(self.turns), sum_rewards(self.rewards[len(self.turns) - 2 :]), terminated, truncated, info

    def _info(self) -> dict[str, Any]:
        taken = [name for name, _ in self.turns[1:]]
        return {"action_mask": np.array(self.actions.mask(taken, self.turns[-1][1]))}

    def _final_info(self) -> dict[str, Any]:
        left = self.teacher.left
        if not (left or self.teacher.each_answer):
            self.rewards.append(self.teacher.judge(""))
        info = {"rewards": self.rewards, "cost": 0.0, "left": left, "success": sum_rewards(self.rewards) > 0}
        return self._info() | info | {"turns": self.turns}
