"""The configuration of a run, and whether the user named it or it was found beside an agent; docs/SECURITY.md has the rule."""

import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_dialog.config.loading import load_config, read_yaml
from rlhf_dialog.config.registry import EnvironmentFactory, refusal, refuse
from rlhf_dialog.config.schema import Config, EnvironmentConfig
from rlhf_dialog.data.sources import is_hub_name
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import check_files
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.composite import build_reward, reaches_out

logger = logging.getLogger(__name__)
HERE = os.curdir  # a path that is on this machine


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
            found = {"env.args.data_path": f"{path[:100]!r} is not on this machine, so the Hub would be asked"}
            raise UserError(f"{self._refusal(found)}; or name the data with --data_path")
        return path

    def reward(self, new_paths: dict[str, str] | None = None) -> BaseReward | None:
        """The reward; `new_paths` (old -> new path) replaces models in all its parts by those that the user named.

        None, with one warning, when the configuration is not trusted and the reward reaches out (`BaseReward.reaches_out`).
        Raises what `build_reward` raises.
        """
        new_paths, settings = new_paths or {}, self.config.reward_class
        # where a model that the user named lies is theirs to say
        beside = _replace_paths(settings.args, dict.fromkeys(new_paths, HERE))
        found = {} if self.trusted else reaches_out(settings.id, beside)
        refused = {f"reward_class.{key}": why for key, why in found.items()}
        if refused:
            logger.warning("no score and no measures of the reward: %s", self._refusal(refused))
            return None
        return build_reward(settings.id, _replace_paths(settings.args, new_paths))

    def environment(self, named: dict[str, Any]) -> EnvironmentConfig | None:
        """The environment with the arguments that the user named; UserError where its own reach out and it is not trusted."""
        choice = self.config.environment
        if choice and not self.trusted:
            args = {key: value for key, value in choice.args.items() if key not in named}
            remedy = ", or name your domain with --domain" if "domain" in args else ""
            refuse(self.path, "environment", EnvironmentFactory, choice.id, args, remedy)
        return choice and choice.model_copy(update={"args": choice.args | named})

    def _refusal(self, found: dict[str, str]) -> str:
        return f"{refusal(self.path, found)} or --config {self.path}"


def refuse_hub_data(path: Path, key: str, data_path: str | None) -> None:
    """Raises UserError where the file at `path`, which was found, names data on the Hub."""
    if data_path and is_hub_name(data_path):
        why = f"{data_path[:100]!r} is not on this machine, so the Hub would be asked"
        raise UserError(refusal(path, {key: why}))


def read_run_config(named: Path | None, path: Path, trust_found: bool = False) -> RunConfig | None:
    """The configuration that the user named, else the one at `path` if it exists, else None. Raises UserError for its errors, and
    for one at `path` that may not be opened (`found_files`)."""
    if named:
        return RunConfig(load_config(named), named, trusted=True)
    check_files(path.parent, [path.name])
    return RunConfig(load_config(path), path, trust_found) if path.is_file() else None


def number_in(path: Path, key: str) -> float | None:
    """The number under `key` in a YAML that was found, None without one. Raises UserError for anything that is not a number."""
    value = read_yaml(path).get(key) if path.is_file() else None
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{path}: {key} is not a finite number; check that this is the config.yaml of a run")
    return float(value)


def _replace_paths(args: Any, new_paths: dict[str, str]) -> Any:
    """The arguments of a reward and its parts, with the paths that are keys of `new_paths` replaced by its values."""
    if isinstance(args, dict):
        return {key: _replace_paths(value, new_paths) for key, value in args.items()}
    if isinstance(args, list):
        return [_replace_paths(item, new_paths) for item in args]
    return new_paths.get(str(args), args)
