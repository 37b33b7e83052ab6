"""A policy of acts as the system of a dialogue in words: it reads the tracker's belief, and its acts are put into words."""

from functools import partial
from random import Random
from typing import Any

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.base import DialoguePolicy, PolicySpec, choose
from rlhf_dialog.task_oriented.policies.built_in import build_policy
from rlhf_dialog.task_oriented.world.goal_oriented import GoalOriented
from rlhf_dialog.task_oriented.world.summary import Layout, SummaryActions, summarise
from rlhf_dialog.task_oriented.world.tracker import Belief
from rlhf_dialog.task_oriented.world.words import system_words


class PolicyInWords:
    """What `policy`, such as the handcrafted one, says to the user of a `GoalOriented` environment.

    varied: whether it draws among the sentences of the templates, else it says the first one
    """

    def __init__(self, environment: GoalOriented, policy: DialoguePolicy, varied: bool = True):
        self.environment, self.policy, self.varied = environment, policy, varied
        self.layout, self.actions = Layout(environment.domain), SummaryActions(environment.domain)
        self.words = system_words(environment.domain)

    def begin(self, seed: int, options: dict[str, Any] | None = None) -> str:
        """Begin a dialogue; the user's first turn. The same seed gives the same dialogue."""
        self.actions.reset()
        self.seed, self.turn = seed, 0
        return self.environment.reset(seed=seed, options=options)[0]

    def reply(self) -> str:
        """What the system says next. Raises UserError for a tracker that does not keep a `Belief`."""
        belief = self.environment.belief
        if not isinstance(belief, Belief):
            raise UserError(
                f"tracker: {type(belief).__name__} is not a Belief, which policies of acts read; use FocusTracker"
            )
        summary = summarise(self.environment.domain, belief)
        mask = self.actions.mask(belief, summary)
        observation = self.layout.encode(belief, summary)
        stream = Random(f"{self.seed}/{self.turn}/system")
        chosen, _ = choose(self.policy, observation[None], mask[None], True, [stream])
        self.turn += 1
        acts = self.actions.acts(self.actions.names[int(chosen[0])], belief, summary)
        return self.words.say(acts, stream if self.varied else None)


def _baseline(policy: str, environment: GoalOriented, seed: int) -> PolicyInWords:
    return PolicyInWords(environment, build_policy(policy, {}, PolicySpec(0, 0, seed, environment.domain)))


handcrafted_in_words, random_in_words = partial(_baseline, "handcrafted"), partial(_baseline, "random")
