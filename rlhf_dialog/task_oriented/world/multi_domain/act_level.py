"""The act-level environment with several domains: one summary action a turn, for any learner that knows Gymnasium."""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import MultiDomain
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.multi_domain.actions import NULL, MultiActions
from rlhf_dialog.task_oriented.world.multi_domain.bookings import BookingDesk
from rlhf_dialog.task_oriented.world.multi_domain.goals import draw_goal, goal_of
from rlhf_dialog.task_oriented.world.multi_domain.observations import MultiLayout
from rlhf_dialog.task_oriented.world.multi_domain.state import DialogueState
from rlhf_dialog.task_oriented.world.multi_domain.success import evaluate
from rlhf_dialog.task_oriented.world.multi_domain.user import MultiAgendaUser

try:
    import gymnasium
except ImportError:
    raise UserError("the act-level environment needs Gymnasium; install it (pip install gymnasium)") from None

MAX_TURNS = 20
TURN_REWARD, END_REWARD = -1.0, (80.0, -40.0)  # of a turn; of success and of failure
Observation = NDArray[np.float32]


class MultiActLevel(gymnasium.Env[Observation, np.int64]):
    """One dialogue is one episode, one step is one turn of the policy and the user's answer.

    domain: several domains (`open_domain("multiwoz", folder)`)
    max_turns: after that many steps the dialogue is cut off (`truncated`), and has failed
    user: `friendly`, a dict of the agenda user's parameters, or a simulated user with `goal`, `begin` and `answer`
    end_reward: what success and failure are worth at the end; each turn costs 1
    masked: False allows every action in every turn

    Observations are states (`layout` says what lies where); actions are `names`. A dialogue depends on (seed, dialogue)
    and the actions only. `info["action_mask"]` is True where an action makes sense; another one is not understood.
    Raises UserError for an argument that cannot be used.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as in Gymnasium

    def __init__(
        self,
        domain: MultiDomain,
        max_turns: int = MAX_TURNS,
        user: Any = "friendly",
        end_reward: Sequence[float] = END_REWARD,
        masked: bool = True,
    ):
        if max_turns < 1:
            raise UserError(f"max_turns is {max_turns}; give 1 or more")
        self.domain, self.max_turns, self.masked = domain, max_turns, masked
        self.user: Any = MultiAgendaUser(domain, user) if isinstance(user, str | dict) else user
        self.failing_bookings = getattr(self.user, "parameters", {}).get("failing_bookings", 0.0)
        self.success_reward, self.failure_reward = end_reward
        self.actions, self.layout = MultiActions(domain), MultiLayout(domain)
        self.names = self.actions.names
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (self.layout.size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(self.names))
        self._seed: int | None = None
        self.dialogue = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin a dialogue; the user has spoken.

        `seed` begins with dialogue 0, without it the next one follows; `options["dialogue"]` is the number of another
        one, and `options["goal"]` a goal of your own (`goals.goal_of`). Raises UserError for a goal that cannot be used.
        """
        super().reset(seed=seed)
        options = options or {}
        if seed is not None or self._seed is None:
            self._seed, self.dialogue = int(self.np_random.integers(2**31)) if seed is None else seed, -1
        self.dialogue = int(options.get("dialogue", self.dialogue + 1))
        rng = self._stream("user")
        own = options.get("goal")
        goal = draw_goal(self.domain, rng, self.failing_bookings) if own is None else goal_of(self.domain, own)
        self.first_goal = goal.copy()
        refused = {name: dict(wish.fail_book) for name, wish in goal.wishes.items() if wish.fail_book}
        self.desk = BookingDesk(self._stream("desk"), refused)
        self.state = DialogueState(self.domain)
        self.system_acts: list[list[Act]] = []
        self.user_acts = [self._turn("begin", self.user.begin(goal, rng))]
        return self._observe([], None), self._info()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Say the action's acts, and hear the user; -1 a turn, and `end_reward` at the end."""
        acts = self.actions.acts(self.names[int(action)], self.state, self.desk)
        self.system_acts.append(acts)
        answer = self._turn("answer", self.user.answer(acts))
        self.user_acts.append(answer)
        observation = self._observe(acts, int(action))
        terminated = any(act.intent == "bye" for act in answer)
        truncated = not terminated and len(self.system_acts) >= self.max_turns
        info, reward = self._info(), TURN_REWARD
        if terminated or truncated:
            info |= self._ended(terminated)
            reward += self.success_reward if info["success"] else self.failure_reward
        return observation, reward, terminated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """(A,), True where an action makes sense now; the name is sb3-contrib's."""
        return self.mask

    def _turn(self, method: str, acts: Any) -> list[Act]:
        """The user's turn; one without acts is `null`. Raises UserError when it is something else than a list of acts."""
        if not isinstance(acts, list) or not all(isinstance(act, Act) for act in acts):
            name = type(self.user).__name__
            raise UserError(f"user {name}: {method} returned {acts!r}; return a list of Act")
        return acts or NULL

    def _stream(self, part: str) -> Random:
        return Random(f"{self._seed}/{self.dialogue}/{part}")

    def _observe(self, system_acts: list[Act], action: int | None) -> Observation:
        self.state.update(system_acts, self.user_acts[-1])
        mask = self.actions.mask(self.state)
        self.mask = mask if self.masked else np.ones_like(mask)
        return self.layout.encode(self.state, action, min(len(self.system_acts) / self.max_turns, 1.0))

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.mask, "dialogue": self.dialogue}

    def _ended(self, terminated: bool) -> dict[str, Any]:
        """What is known at the end: goal as it was and as it is, turns of both sides, bookings, and the verdict."""
        outcome = evaluate(self.domain, self.user.goal, self.system_acts, self.desk.bookings)
        return {
            "goal": self.user.goal.as_dict(),
            "first_goal": self.first_goal.as_dict(),
            "user_acts": self.user_acts,
            "system_acts": self.system_acts,
            "bookings": [booking.as_dict() for booking in self.desk.bookings],
            "success": terminated and outcome.success,
            "inform": {"precision": outcome.precision, "recall": outcome.recall, "f1": outcome.f1},
            "book_rate": outcome.book_rate,
            "turns": len(self.system_acts),
        }
