"""The act-level environment: a policy chooses summary actions on beliefs, for any learner that knows Gymnasium."""

from pathlib import Path
from random import Random
from typing import Any

from rlhf_dialog.task_oriented.domains import Domain, load_domain
from rlhf_dialog.task_oriented.world.act_world import MAX_TURNS, GymnasiumWorld, Observation
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.error_channel import ErrorChannel
from rlhf_dialog.task_oriented.world.goals import Goal, draw_goal, parse_goal
from rlhf_dialog.task_oriented.world.success import evaluate
from rlhf_dialog.task_oriented.world.summary import Layout, SummaryActions, summarise
from rlhf_dialog.task_oriented.world.tracker import FocusTracker
from rlhf_dialog.task_oriented.world.users import AgendaUser, User


class ActLevel(GymnasiumWorld):
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

    def __init__(
        self,
        domain: Domain | str | Path = "restaurant",
        error_rate: float = 0.0,
        max_turns: int = MAX_TURNS,
        user: "str | dict[str, Any] | User" = "friendly",
        masked: bool = True,
    ):
        super().__init__(max_turns, masked)
        self.domain = domain if isinstance(domain, Domain) else load_domain(domain)
        self.user: User = AgendaUser(self.domain, user) if isinstance(user, str | dict) else user
        self.channel = ErrorChannel(self.domain, error_rate, Random(0))
        self.tracker = FocusTracker(self.domain)
        self.actions = SummaryActions(self.domain)
        self.layout = Layout(self.domain)
        self._declare(self.layout.size, self.actions.names)

    def _draw_goal(self, options: dict[str, Any], rng: Random) -> Goal:
        return parse_goal(self.domain, options["goal"]) if "goal" in options else draw_goal(self.domain, rng)

    def _begin(self, goal: Goal) -> None:
        self.channel.rng = self._stream("channel")
        self.tracker.reset()
        self.actions.reset()

    def _system_turn(self, action: Any) -> list[Act]:
        return self.actions.acts(self.names[int(action)], self.belief, self.summary)

    def _observe(self, system_acts: list[Act], action: Any, is_over: bool) -> Observation:
        self.belief = self.tracker.update(system_acts, self.channel(self.user_acts[-1]))
        self.summary = summarise(self.domain, self.belief)
        self._allow(self.actions.mask(self.belief, self.summary))
        return self.layout.encode(self.belief, self.summary)

    def _final_goal(self) -> Goal:
        goal: Goal = super()._final_goal()
        return goal.since(self.first_goal, self.domain)

    def _verdict(self, goal: Goal) -> dict[str, Any]:
        outcome = evaluate(self.domain, goal, self.system_acts)
        inform = {"precision": outcome.precision, "recall": outcome.recall, "f1": outcome.f1}
        return {"success": outcome.success, "inform": inform}
