"""The act-level environment with several domains: one summary action a turn, for any learner that knows Gymnasium."""

from collections.abc import Sequence
from random import Random
from typing import Any

from rlhf_dialog.task_oriented.domains import MultiDomain
from rlhf_dialog.task_oriented.world.act_world import GymnasiumWorld, Observation
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.multi_domain.actions import MultiActions, MultiLayout
from rlhf_dialog.task_oriented.world.multi_domain.goals import MultiGoal, draw_goal, parse_goal
from rlhf_dialog.task_oriented.world.multi_domain.state import BookingDesk, DialogueState
from rlhf_dialog.task_oriented.world.multi_domain.success import evaluate
from rlhf_dialog.task_oriented.world.multi_domain.user import MultiAgendaUser

MAX_TURNS = 20
END_REWARD = (80.0, -40.0)  # of success and of failure


class MultiActLevel(GymnasiumWorld):
    """One dialogue is one episode, one step is one turn of the policy and the user's answer.

    domain: several domains (`open_domain("multiwoz", folder)`)
    max_turns: after that many steps the dialogue is cut off (`truncated`), and has failed
    user: `friendly`, a dict of the agenda user's parameters, or a simulated user with `goal`, `begin` and `answer`
    end_reward: what success and failure are worth at the end; each turn costs 1
    masked: False allows every action in every turn

    Observations are states (`layout` says what lies where); actions are `names`. A dialogue depends on (seed, dialogue)
    and the actions only. `options["goal"]` is a `MultiGoal` of your own, or a dict such as `info["goal"]`.
    `info["action_mask"]` is True where an action makes sense; another one is not understood. Raises UserError for an argument
    that cannot be used.
    """

    greeting: list[Act] = []  # noqa: RUF012 - the user speaks first

    def __init__(
        self,
        domain: MultiDomain,
        max_turns: int = MAX_TURNS,
        user: Any = "friendly",
        end_reward: Sequence[float] = END_REWARD,
        masked: bool = True,
    ):
        success_reward, failure_reward = end_reward
        super().__init__(max_turns, masked, success_reward, failure_reward)
        self.domain = domain
        self.user: Any = MultiAgendaUser(domain, user) if isinstance(user, str | dict) else user
        self.failing_bookings = getattr(self.user, "parameters", {}).get("failing_bookings", 0.0)
        self.actions, self.layout = MultiActions(domain), MultiLayout(domain)
        self._declare(self.layout.size, self.actions.names)

    def _draw_goal(self, options: dict[str, Any], rng: Random) -> MultiGoal:
        if "goal" not in options:
            return draw_goal(self.domain, rng, self.failing_bookings)
        goal = options["goal"]
        return goal.copy() if isinstance(goal, MultiGoal) else parse_goal(self.domain, goal)

    def _begin(self, goal: MultiGoal) -> None:
        refused = {name: dict(part.fail_book) for name, part in goal.by_domain.items() if part.fail_book}
        self.desk = BookingDesk(self._stream("desk"), refused)
        self.state = DialogueState(self.domain)

    def _system_turn(self, action: Any) -> list[Act]:
        return self.actions.acts(self.names[int(action)], self.state, self.desk)

    def _observe(self, system_acts: list[Act], action: Any, is_over: bool) -> Observation:
        self.state.update(system_acts, self.user_acts[-1])
        self._allow(self.actions.mask(self.state))
        number = None if action is None else int(action)
        return self.layout.encode(self.state, number, min(len(self.system_acts) / self.max_turns, 1.0))

    def _verdict(self, goal: MultiGoal) -> dict[str, Any]:
        outcome = evaluate(self.domain, goal, self.system_acts, self.desk.bookings)
        return {
            "bookings": [booking.as_dict() for booking in self.desk.bookings],
            "success": outcome.success,
            "inform": {"precision": outcome.precision, "recall": outcome.recall, "f1": outcome.f1},
            "book_rate": outcome.book_rate,
        }
