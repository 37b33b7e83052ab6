"""The environment `restaurant`: a guest in words who looks for a venue."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.task_oriented.domains import Domain, load_domain
from rlhf_dialog.task_oriented.world.act_world import MAX_TURNS
from rlhf_dialog.task_oriented.world.goal_oriented import LINE_LENGTH, GoalOriented
from rlhf_dialog.task_oriented.world.success import Evaluator
from rlhf_dialog.task_oriented.world.tracker import FocusTracker
from rlhf_dialog.task_oriented.world.users import AgendaUser
from rlhf_dialog.task_oriented.world.words import Words, system_words, user_words


@EnvironmentFactory.register("restaurant")
def restaurant(
    domain: str | Path = "restaurant",
    user: str | dict[str, Any] = "friendly",
    max_turns: int = MAX_TURNS,
    line_length: int = LINE_LENGTH,
) -> GoalOriented:
    """A guest in words who looks for a venue of a domain, see `GoalOriented`.

    domain: its name or path (`load_domain`); user: `friendly`, `unfriendly`, `fixed`, or a dict of the agenda user's parameters
    line_length: letters at most of the line of the data base, which a domain with long values needs
    """
    loaded_domain, system_side, user_side = _in_words(str(domain))
    return GoalOriented(
        AgendaUser(loaded_domain, user),
        FocusTracker(loaded_domain),
        Evaluator(loaded_domain),
        nlu=system_side.read,
        nlg=user_side.say,
        max_turns=max_turns,
        line_length=line_length,
    )


@lru_cache(maxsize=4)
def _in_words(domain: str) -> tuple[Domain, Words, Words]:
    """The domain, what its systems say, and what its users say; for all environments of a run."""
    loaded_domain = load_domain(domain)
    return loaded_domain, system_words(loaded_domain), user_words(loaded_domain)
