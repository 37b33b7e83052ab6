"""The configuration of a run, and what one that was found beside an agent may do; docs/SECURITY.md has the rule."""

import inspect
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from rlhf_dialog.config.loading import load_config
from rlhf_dialog.config.registry import COLON, EnvironmentFactory, Registry, RewardFactory
from rlhf_dialog.config.schema import Config, EnvironmentConfig
from rlhf_dialog.data.hub import is_local
from rlhf_dialog.data.sources import is_hub_name
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import check_files, is_below, not_trusted
from rlhf_dialog.json_files import map_leaves
from rlhf_dialog.rewards.base import BaseReward, check_alone
from rlhf_dialog.rewards.composite import build_reward
from rlhf_dialog.user_code import is_of_users

logger = logging.getLogger(__name__)
# classes of this package with which a configuration that was found can open no connection, read no environment and run no code
REACHES_NOTHING = frozenset(
    (
        *("CompositeReward", "CopyPrice", "EncoderSimilarity", "Intent", "LengthHold", "LengthMatch"),
        *("LikelihoodPrice", "Meteor", "NLPReward", "NoReward", "RelevanceReward", "RewardModel"),
        *("corpus", "language_model_user", "restaurant"),
        *("a2c", "acer", "bbqn", "committee", "dqn", "enac", "feudal", "gp_sarsa", "handcrafted", "manager"),
        *("ppo", "random", "tracer"),
    )
)
# arguments of environments that name a model or data, which must be on this machine (rewards say theirs: `model_args`), and
# arguments of environments and policies that name a file of the found folder
ON_THIS_MACHINE = ("model", "data_path")
IN_THE_FOLDER = ("domain", "goals", "openings", "prior", "abstraction")
OWN_DOMAIN = "restaurant"  # a name of the package, no file
ON_THE_HUB = "is not on this machine, so the Hub would be asked"


@dataclass(frozen=True)
class RunConfig:
    """A configuration, its file, and whether it is `trusted`: named by the user, or found and trusted with --trust_config."""

    config: Config
    path: Path
    trusted: bool

    def data_path(self) -> str:
        """`env.args.data_path`.

        Raises UserError where an environment is in its place, and for a Hub name in a configuration that is not trusted.
        """
        path, environment = self.config.env.args.data_path, self.config.environment
        if environment and not path:
            raise UserError(
                f"{self.path}: the run learned from the environment {environment.id} and names no data; name some with "
                "--data_path, or measure whole dialogues with evaluate_policy.py"
            )
        if not self.trusted and is_hub_name(path):
            why = f"env.args.data_path: {path[:100]!r} {ON_THE_HUB}"
            raise UserError(f"{self._refusal(why)}; or name the data with --data_path")
        return path

    def reward(self, new_paths: dict[str, str] | None = None) -> BaseReward | None:
        """The reward; `new_paths` (old -> new path) replaces models in all its parts by those that the user named.

        None, with one warning, when the configuration is not trusted and may not have it built (`why_refused`). Raises what
        `build_reward` raises.
        """
        new_paths, name = new_paths or {}, self.config.reward_class.id
        args = map_leaves(self.config.reward_class.args, lambda leaf: new_paths.get(str(leaf), leaf))
        why = None if self.trusted else why_refused(RewardFactory, name, args, self.path.parent, new_paths.values())
        if why:
            logger.warning("no score and no measures of the reward: %s", self._refusal(f"reward_class.{why}"))
            return None
        reward = build_reward(name, args, self.config.env.args.columns)
        check_alone(reward, f"{self.path}: reward_class")
        return reward

    def environment(self, named: dict[str, Any]) -> EnvironmentConfig | None:
        """The environment with the arguments that the user named. Raises UserError as `check_class` where it is not trusted."""
        choice = self.config.environment
        if choice and not self.trusted:
            args = {key: value for key, value in choice.args.items() if key not in named}
            check_class(self.path, "environment", EnvironmentFactory, choice.id, args)
        return choice and choice.model_copy(update={"args": choice.args | named})

    def _refusal(self, why: str) -> str:
        return f"{not_trusted(self.path, why)} or --config {self.path}"


def check_class(path: Path, key: str, registry: Registry, name: str, args: dict[str, Any]) -> None:
    """Raises UserError where the file at `path`, which was found, may not have this class built under `key` (`why_refused`)."""
    if why := why_refused(registry, name, args, path.absolute().parent):
        raise not_trusted(path, f"{key}.{why}")


def check_data(path: Path, key: str, data_path: str | None) -> None:
    """Raises UserError where the file at `path`, which was found, names data on the Hub."""
    if data_path and is_hub_name(data_path):
        raise not_trusted(path, f"{key}: {data_path[:100]!r} {ON_THE_HUB}")


def why_refused(
    registry: Registry, name: str, args: dict[str, Any], folder: Path, named: Collection[str] = ()
) -> str | None:
    """Why a file in `folder` that was found may not have this class built with these arguments, as `argument: reason`, or None.

    Classes that are named inside of the arguments count too, and so do the paths there; `named`: models that the user named.
    A class that the user registered is built with its default arguments alone. An id with a colon, which names a function in a
    file, is refused before any name is looked up. An unknown name without one passes, because `Registry.create` refuses it.
    """
    on_this_machine = {
        *ON_THIS_MACHINE,
        *chain(*(getattr(one, "model_args", ()) for one in RewardFactory.classes.values())),
    }
    places = [("id", name), *_values(args, "args")]
    values = dict(places)
    for place, value in places:
        if place.rpartition(".")[2] == "id" and COLON in str(value):
            return f"{place}: {value!r:.100} would run a function of a file or module"
    for place, value in places:
        key = place.rpartition(".")[2]
        cls = registry.find(value) if isinstance(value, str) else None
        if cls is not None and (value not in REACHES_NOTHING or is_of_users(cls)):
            is_own = key == "id" and is_of_users(cls)
            if not (is_own and has_defaults(cls, values.get(f"{place.removesuffix('id')}args"))):
                return f"{place}: {value} may open connections or run other code{' with these arguments' if is_own else ''}"
        if re.sub(r"\[\d+\]", "[]", key) in on_this_machine and value not in named and not is_local(str(value)):
            return f"{place}: {value!r:.100} {ON_THE_HUB}"
        if key in IN_THE_FOLDER and isinstance(value, str) and value != OWN_DOMAIN and leads_out(value, folder):
            return f"{place}: {value[:100]!r} is not in {folder}"
        if key == "allow_pickle_weights" and value:
            return f"{place}: reads pickled weights"
    return None


def has_defaults(cls: Any, args: Any) -> bool:
    """Whether these arguments of a class, if any, are those that it has by default."""
    if not args:
        return True
    defaults = {name: one.default for name, one in inspect.signature(cls).parameters.items()}
    return isinstance(args, Mapping) and all(defaults.get(key, cls) == value for key, value in args.items())


def leads_out(path: str, folder: Path) -> bool:
    """Whether a path, or a file in it, lies outside of `folder`, links resolved."""
    target = Path(path).expanduser()
    return not all(is_below(each, folder) for each in chain([target], target.rglob("*")))


def read_run_config(named: Path | None, path: Path, trust_found: bool = False) -> RunConfig | None:
    """The configuration that the user named, else the one at `path` if it exists, else None. Raises UserError for its errors, and
    for one at `path` that may not be opened (`found_files`)."""
    if named:
        return RunConfig(load_config(named), named, trusted=True)
    check_files(path.parent, [path.name])
    return RunConfig(load_config(path), path, trust_found) if path.is_file() else None


def _values(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """What nested arguments hold, containers too, each with its place: ("args.parts[0].args.url", "http://...")."""
    yield place, value
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _values(inner, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _values(inner, f"{place}[{i}]")
