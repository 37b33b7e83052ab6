"""The environments that a YAML can name, and how one is built; your own ones register with `EnvironmentFactory` as these do."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.data.domains import Domain, load_domain
from rlhf_dialog.environments.base import Environment
from rlhf_dialog.environments.goal_oriented import MAX_TURNS, GoalOriented
from rlhf_dialog.environments.success import Evaluator
from rlhf_dialog.environments.tracker import FocusTracker
from rlhf_dialog.environments.users import AgendaUser
from rlhf_dialog.environments.words import Words, system_words, user_words
from rlhf_dialog.errors import USER_CODE_RAISES, RunStopped, SignalExit, UserError
from rlhf_dialog.foreign_code import frames_of, line_of, outside_libraries


@EnvironmentFactory.register("restaurant")
def restaurant(
    domain: str | Path = "restaurant", user: str | dict[str, Any] = "friendly", max_turns: int = MAX_TURNS
) -> GoalOriented:
    """A guest in words who looks for a venue of a domain, see `GoalOriented`.

    domain: its name or path (`load_domain`); user: `friendly`, `unfriendly`, `fixed`, or a dict of the agenda user's parameters
    """
    known, heard, said = _in_words(str(domain))
    return GoalOriented(
        AgendaUser(known, user),
        FocusTracker(known),
        Evaluator(known),
        nlu=heard.read,
        nlg=said.say,
        max_turns=max_turns,
    )


@lru_cache(maxsize=4)
def _in_words(domain: str) -> tuple[Domain, Words, Words]:
    """The domain, what its systems say, and what its users say; for all environments of a run."""
    known = load_domain(domain)
    return known, system_words(known), user_words(known)


def build_environment(name: str, args: dict[str, Any]) -> Environment:
    """The environment of `environment: {id: name, args: args}`.

    Raises UserError for an unknown name or wrong arguments, when its constructor raises, and when it lacks a method.
    """
    if problem := EnvironmentFactory.problem(name, args):
        raise UserError(f"environment: {problem}")
    try:
        built: Environment = EnvironmentFactory.classes[name](**args)
    except (UserError, RunStopped, SignalExit):
        raise
    except USER_CODE_RAISES as error:
        own = outside_libraries(frames_of(error))
        place = f" at {line_of(own[-1])}" if own else ""
        raise UserError(f"environment {name}: its constructor raised {type(error).__name__}: {error}{place}") from error
    for method in ("reset", "step"):
        if not callable(getattr(built, method, None)):
            raise UserError(f"environment {name}: it has no method {method}; define reset(seed) and step(reply)")
    return built
