"""Replies in the dialogues of a restaurant guide, in words: of the handcrafted policy, and of the random one what teaches."""

from collections.abc import Iterator

from rlhf_dialog.evaluation.replies import progress
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted, RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.in_words import PolicyInWords
from rlhf_dialog.task_oriented.world.goal_oriented import GoalOriented


def replies(environment: GoalOriented, seeds: range, varied: bool) -> Iterator[dict[str, object]]:
    """One row for each reply of the handcrafted policy in these dialogues."""
    yield from _rows(PolicyInWords(environment, Handcrafted(environment.domain), varied), seeds)


def lessons(environment: GoalOriented, seeds: range, varied: bool) -> Iterator[dict[str, object]]:
    """The replies that give values of an entity, in these dialogues of the random policy."""
    random = RandomPolicy(PolicySpec(0, 0, domain=environment.domain))
    for row in _rows(PolicyInWords(environment, random, varied), seeds):
        if any(act.intent == "inform" for act in environment.nlu(str(row["reference"]))):
            yield row


def _rows(system: PolicyInWords, seeds: range) -> Iterator[dict[str, object]]:
    for seed in progress(seeds, "talking"):
        turns, ended = [system.begin(seed)], False
        while not ended:
            reply = system.reply()
            yield {"prompt": list(turns), "reference": reply, "dialogue": seed}
            user_turn, _, terminated, truncated, _ = system.environment.step(reply)
            turns += [reply, user_turn]
            ended = terminated or truncated
