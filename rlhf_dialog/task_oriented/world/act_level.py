"""The act-level environment: a policy chooses summary actions on beliefs, for any learner that knows Gymnasium."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import Domain, load_domain
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.error_channel import NULL, ErrorChannel
from rlhf_dialog.task_oriented.world.goals import Goal, draw_goal, goal_of
from rlhf_dialog.task_oriented.world.observations import Layout
from rlhf_dialog.task_oriented.world.success import evaluate
from rlhf_dialog.task_oriented.world.summary import summarise
from rlhf_dialog.task_oriented.world.summary_actions import SummaryActions
from rlhf_dialog.task_oriented.world.tracker import FocusTracker
from rlhf_dialog.task_oriented.world.users import AgendaUser, User

try:
    import gymnasium
except ImportError:
    raise UserError("the act-level environment needs Gymnasium; install it (pip install gymnasium)") from None

MAX_TURNS = 25
TURN_REWARD, SUCCESS_REWARD = -1.0, 20.0
GREETING = [Act("hello")]
Observation = NDArray[np.float32]


class ActLevel(gymnasium.Env[Observation, np.int64]):
    """One dialogue is one episode, one step is one turn of the policy and the user's answer.

    domain: a domain, its name or its path (`load_domain`)
    error_rate: how often the user is misunderstood, 0 to 1
    max_turns: after that many steps the dialogue is cut off (`truncated`), and has failed
    user: `friendly`, `unfriendly`, `fixed`, a dict of the agenda user's parameters, or a simulated user (`User`)
    masked: False allows every action in every turn

    Observations are beliefs (`layout` says what lies where); actions are `names`. A dialogue depends on (seed, dialogue)
    and the actions only. `info["action_mask"]` is True where an action makes sense; another one is carried out as well
    as it can be, or is not understood. Raises UserError for a domain or an argument that cannot be used.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as in Gymnasium

    def __init__(
        self,
        domain: Domain | str | Path = "restaurant",
        error_rate: float = 0.0,
        max_turns: int = MAX_TURNS,
        user: "str | dict[str, Any] | User" = "friendly",
        masked: bool = True,
    ):
        if max_turns < 1:
            raise UserError(f"max_turns is {max_turns}; give 1 or more")
        self.domain = domain if isinstance(domain, Domain) else load_domain(domain)
        self.user: User = AgendaUser(self.domain, user) if isinstance(user, str | dict) else user
        self.max_turns, self.masked = max_turns, masked
        self.channel = ErrorChannel(self.domain, error_rate, Random(0))
        self.tracker = FocusTracker(self.domain)
        self.actions = SummaryActions(self.domain)
        self.names = self.actions.names
        self.layout = Layout(self.domain)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (self.layout.size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(self.names))
        self._seed: int | None = None
        self.dialogue = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin a dialogue; the user has answered the system's greeting.

        `seed` begins with dialogue 0, without it the next one follows; `options["dialogue"]` is the number of another
        one, and `options["goal"]` a goal of your own (`goals.goal_of`). Raises UserError for a goal that cannot be used.
        """
        super().reset(seed=seed)
        options = options or {}
        if seed is not None or self._seed is None:
            self._seed, self.dialogue = int(self.np_random.integers(2**31)) if seed is None else seed, -1
        self.dialogue = int(options.get("dialogue", self.dialogue + 1))
        rng = self._stream("user")
        goal = goal_of(self.domain, options["goal"]) if "goal" in options else draw_goal(self.domain, rng)
        self.first_goal: Goal = goal.copy()
        self.channel.rng = self._stream("channel")
        self.tracker.reset()
        self.actions.reset()
        self.system_acts: list[list[Act]] = []
        self.user_acts = [self._turn("begin", self.user.begin(goal, rng))]
        observation = self._observe(GREETING)
        return observation, self._info()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Say the action's acts, and hear the user; -1 a turn, and +20 at the end of a dialogue that succeeded."""
        acts = self.actions.acts(self.names[int(action)], self.belief, self.summary)
        self.system_acts.append(acts)
        answer = self._turn("answer", self.user.answer(acts))
        self.user_acts.append(answer)
        observation = self._observe(acts)
        terminated = any(act.intent == "bye" for act in answer)
        truncated = not terminated and len(self.system_acts) >= self.max_turns
        info, reward = self._info(), TURN_REWARD
        if terminated or truncated:
            info |= self._ended(terminated)
            reward += SUCCESS_REWARD * info["success"]
        return observation, reward, terminated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """(A,), True where an action makes sense now; the name is sb3-contrib's."""
        return self.mask

    def _turn(self, method: str, acts: Any) -> list[Act]:
        """The user's turn; one without acts is `null`. Raises UserError when it is something else than a list of acts."""
        if not isinstance(acts, list) or not all(isinstance(act, Act) for act in acts):
            name = type(self.user).__name__
            raise UserError(f"user {name}: {method} returned {acts!r}; return a list of Act")
        return acts or [NULL]

    def _stream(self, part: str) -> Random:
        return Random(f"{self._seed}/{self.dialogue}/{part}")

    def _observe(self, system_acts: list[Act]) -> Observation:
        self.belief = self.tracker.update(system_acts, self.channel(self.user_acts[-1]))
        self.summary = summarise(self.domain, self.belief)
        mask = self.actions.mask(self.belief, self.summary)
        self.mask = mask if self.masked else np.ones_like(mask)
        return self.layout.encode(self.belief, self.summary)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.mask, "dialogue": self.dialogue}

    def _ended(self, terminated: bool) -> dict[str, Any]:
        """What is known at the end: goal as it was and as it is, turns of both sides, and the verdict."""
        outcome = evaluate(self.domain, self.user.goal, self.system_acts)
        return {
            "goal": self.user.goal.as_dict(),
            "first_goal": self.first_goal.as_dict(),
            "user_acts": self.user_acts,
            "system_acts": self.system_acts,
            "success": terminated and outcome.success,
            "inform": {"precision": outcome.precision, "recall": outcome.recall, "f1": outcome.f1},
            "turns": len(self.system_acts),
        }
