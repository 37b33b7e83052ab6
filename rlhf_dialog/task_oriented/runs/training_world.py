"""What a policy is trained in: a domain with a simulated user, or an environment of the user's own."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlhf_dialog.config.loading import find_config
from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.environments.base import EpisodeLimits
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import AnyDomain, Domain, MultiDomain, open_domain
from rlhf_dialog.task_oriented.policies.base import Episode
from rlhf_dialog.task_oriented.policies.sampling.environments import UserEnvironment, read_sizes
from rlhf_dialog.task_oriented.policies.sampling.transcripts import plain_transcript, transcript
from rlhf_dialog.task_oriented.runs.settings import PERSON
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from rlhf_dialog.task_oriented.world.action_list_world import ActionListWorld, StateFunction, read_actions
from rlhf_dialog.task_oriented.world.multi_domain.act_level import END_REWARD, MultiActLevel
from rlhf_dialog.task_oriented.world.person_world import PersonWorld
from rlhf_dialog.task_oriented.world.users.teacher import Teacher
from rlhf_dialog.terminal import visible


@dataclass(frozen=True)
class TrainingWorld:
    """make: builds an environment, and can be sent to another process; names: of its actions
    name, hash: of the domain, or of the class of the user's own; domain: None where that one has none
    num_features: of an observation; actions: those of a list, as in its file
    """

    make: Callable[[], Any]
    names: Sequence[str]
    num_features: int
    name: str
    hash: str
    domain: AnyDomain | None
    actions: list[dict[str, Any]] | None = None

    def as_json(self) -> Any:
        """The domain or the list of actions, which an agent keeps in its folder; None for several domains or none."""
        return self.domain.as_json() if isinstance(self.domain, Domain) else self.actions

    def transcript(self, episode: Episode) -> str:
        """The lines of a whole dialogue; what a domain or an environment holds cannot steer the terminal."""
        shows_acts = self.domain is not None and "system_acts" in episode.info
        lines = transcript(self.domain, self.names, episode) if shows_acts else plain_transcript(self.names, episode)  # type: ignore[arg-type]
        return visible(lines)


def open_world(settings: dict[str, Any]) -> TrainingWorld:
    """The world of the settings' domain, domains, error_rate, max_turns and user, or of their `environment`.

    Raises UserError for a domain or an environment that cannot be used.
    """
    if environment_choice := settings.get("environment"):
        return _user_world(environment_choice, settings.get("step_timeout_s"), settings["max_turns"])
    if isinstance(settings["domain"], dict):
        raise UserError(
            "domain: only people talk about a list of actions, and no simulated user does; go on with train-policy and its YAML"
        )
    domain, user = open_domain(settings["domain"], settings.get("data_path"), settings.get("domains")), settings["user"]
    if user == PERSON:
        raise UserError(
            "user: a person is asked by train_policy.py alone; measure with a simulated user, --user friendly"
        )
    make: Callable[[], Any]
    if isinstance(domain, MultiDomain):
        if settings["error_rate"]:
            raise UserError(
                f"error_rate: with several domains nobody is misunderstood, found {settings['error_rate']}; use 0"
            )
        make = partial(MultiActLevel, domain, settings["max_turns"], user, settings.get("end_reward") or END_REWARD)
    else:
        if settings.get("end_reward"):
            raise UserError("end_reward: only the domain multiwoz has one; leave it out")
        make = partial(ActLevel, domain, settings["error_rate"], settings["max_turns"], user)
    environment = make()
    return TrainingWorld(make, environment.names, environment.layout.size, domain.name, domain.hash, domain)


def open_person_world(settings: dict[str, Any], teacher: Teacher) -> TrainingWorld:
    """The world of the settings' domain where a teacher, such as a person, talks and gives the rewards.

    Raises UserError for a domain that cannot be used.
    """
    if isinstance(settings["domain"], dict):
        return _action_list_world(settings, teacher)
    domain = open_domain(settings["domain"], settings.get("data_path"))
    if isinstance(domain, MultiDomain):
        raise UserError("user: a person talks about one domain, and multiwoz has several; choose another domain")
    environment = PersonWorld(domain, teacher, settings["max_turns"], settings["show_goal"])
    return TrainingWorld(
        lambda: environment, environment.names, environment.layout.size, domain.name, domain.hash, domain
    )


def _action_list_world(settings: dict[str, Any], teacher: Teacher) -> TrainingWorld:
    """The list of actions with a function of the turns; the hash is of the actions' names, and of the function's arguments."""
    file, choice = settings["domain"]["actions"], settings["domain"]["state"]
    try:
        path = find_config(file)
    except UserError:
        raise UserError(
            f"domain.actions: there is no file '{file}', neither here nor in configs/; correct it"
        ) from None
    actions, state = read_actions(path), StateFunction(choice["id"], choice["args"])
    digest = hashlib.sha256(json.dumps([actions.hash, choice, state.size]).encode()).hexdigest()
    make = partial(ActionListWorld, actions, teacher, state, settings["max_turns"])
    content = [action.model_dump() for action in actions.actions]
    return TrainingWorld(make, actions.names, state.size, path.stem, digest, None, content)


def _user_world(choice: dict[str, Any], step_timeout_s: float | None, max_turns: int) -> TrainingWorld:
    """A class of the user's own has a domain where it is an `ActLevel`; else its sizes stand in for the domain's hash."""
    if problem := EnvironmentFactory.problem(choice["id"], choice["args"]):
        raise UserError(f"environment: {problem}")
    cls = EnvironmentFactory.find(choice["id"])  # itself, because another process has not registered it
    make = partial(UserEnvironment, cls, choice["args"], EpisodeLimits(step_timeout_s, max_turns))
    environment = make()
    num_features, num_actions = read_sizes(environment)
    if isinstance(environment.environment, ActLevel):
        domain: AnyDomain = environment.domain
        return TrainingWorld(make, environment.names, num_features, domain.name, domain.hash, domain)
    names = getattr(environment.environment, "names", None)
    if not isinstance(names, list | tuple) or len(names) != num_actions or not all(isinstance(x, str) for x in names):
        names = [f"action {number}" for number in range(num_actions)]
    identity = json.dumps([choice["id"], num_features, num_actions])
    return TrainingWorld(make, names, num_features, choice["id"], hashlib.sha256(identity.encode()).hexdigest(), None)
