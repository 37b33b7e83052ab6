"""Several domains and their policies behind one `act`. N observations, D features, A actions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from pydantic import BaseModel

from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import read_json
from rlhf_dialog.task_oriented.policies import base
from rlhf_dialog.task_oriented.policies.base import Actions, Episode, Extras, Features, Masks, PolicyFactory, PolicySpec
from rlhf_dialog.task_oriented.policies.built_in import build_policy
from rlhf_dialog.task_oriented.policies.multi_domain.views import OF_EPISODE, EpisodeBuffer, View, Views, save_parts
from rlhf_dialog.task_oriented.policies.ppo import PPO

STATE, UPDATE = "policy.json", "update"


class ManagerState(BaseModel):
    """The file of a manager; the policies of its domains have their own."""

    num_updates: int
    taught: list[str]


@PolicyFactory.register("manager")
class Manager:
    """The policy of the domain of which the user spoke last chooses; each one learns from the turns of its domain.

    policies: domain -> the name of a policy, or {id, args}; others: that of each domain that is not named
    Raises UserError for an unknown domain, and for a policy that cannot be built.
    """

    def __init__(self, setting: PolicySpec, policies: Mapping[str, Any] | None = None, others: Any = "handcrafted"):
        specs, fallback = {} if policies is None else policies, others
        self.views = Views(setting, "manager")
        if not isinstance(specs, Mapping):
            raise UserError(
                f"policy.args.policies: found {policies!r}, wanted the policy of each domain, {{domain: policy}}"
            )
        self.views.check(specs, "policy.args.policies")
        self.policies = {
            name: _build(name, specs.get(name, fallback), view) for name, view in self.views.by_name.items()
        }
        self._blank = {k: row for view in self.views.by_name.values() for k, row in self._empty_extras(view).items()}
        self._pieces = EpisodeBuffer()
        self._taught = set[str]()
        self.num_updates = 0

    def act(
        self, observations: Features, masks: Masks, deterministic: bool, streams: Sequence[Random] = ()
    ) -> tuple[Actions, Extras]:
        """observations (N, D), masks (N, A) -> actions (N,) and extras; those of a domain's policy have its name before them."""
        actions = np.zeros(len(observations), dtype=np.int64)
        extras = {name: np.repeat(row[None], len(observations), axis=0) for name, row in self._blank.items()}
        extras[UPDATE] = np.full(len(observations), self.num_updates)
        for view, rows in self.views.groups(observations):
            row_streams = [streams[row] for row in rows] if len(streams) else []
            seen, allowed = observations[np.ix_(rows, view.columns)], masks[np.ix_(rows, view.actions)]
            chosen, own_extras = base.choose(self.policies[view.name], seen, allowed, deterministic, row_streams)
            actions[rows] = view.actions[chosen]
            for name, column in own_extras.items():
                extras[_key(view.name, name)][rows] = column
        return actions, extras

    def observe(self, episode: Episode) -> None:
        """Keep the pieces of a dialogue until it has ended; then the policy of each domain gets the turns of its own.

        ppo gets those since its last update, because it learns from what it has just drawn.
        """
        whole = self._pieces.join_episode(episode)
        for view, part in self.views.split(whole) if whole else ():
            policy = self.policies[view.name]
            old = part.extras.get(UPDATE, np.full(len(part), -1)) != self.num_updates
            first = int(old.sum()) if isinstance(policy, PPO) else 0
            if first < len(part):
                policy.observe(view.seen(part, first))
                self._taught.add(view.name)

    def update(self) -> dict[str, float]:
        """The policies that have got dialogues learn; their metrics have the domain before them."""
        updates = {name: policy.update() for name, policy in self.policies.items() if name in self._taught}
        self._taught, self.num_updates = set(), self.num_updates + 1
        return {f"{name}/{key}": value for name, metrics in updates.items() for key, value in metrics.items()}

    def save(self, folder: str | Path) -> None:
        """Write each policy into a folder of its domain's name, and the pieces that wait for their end."""
        save_parts(Path(folder), self.policies)
        self._pieces.save(Path(folder))
        write_json(Path(folder) / STATE, {"num_updates": self.num_updates, "taught": sorted(self._taught)})

    def load(self, folder: str | Path) -> None:
        state = read_json(Path(folder) / STATE, f"{folder}: holds no manager, or is damaged: ", shape=ManagerState)
        self.num_updates, self._taught = state["num_updates"], set(state["taught"])
        self._pieces.load(Path(folder))
        for name, policy in self.policies.items():
            policy.load(Path(folder) / name)

    def _empty_extras(self, view: View) -> Extras:
        """The extras of a domain's policy for one turn, all 0."""
        nothing, allowed = np.zeros((1, len(view.columns)), np.float32), np.ones((1, len(view.actions)), np.bool_)
        _, extras = base.choose(self.policies[view.name], nothing, allowed, False, [Random(0)])
        return {_key(view.name, extra): np.zeros_like(column[0]) for extra, column in extras.items()}


def _build(name: str, spec: Any, view: View) -> base.DialoguePolicy:
    """The policy of a domain. Raises UserError, with the domain, for one that cannot be built."""
    where = f"policy.args.policies.{name}"
    mapping: Any = {"id": spec} if isinstance(spec, str) else spec
    keys = mapping if isinstance(mapping, Mapping) and {*mapping} <= {"id", "args"} else {}
    args = {} if keys.get("args") is None else keys["args"]
    if not isinstance(keys.get("id"), str) or not isinstance(args, Mapping):
        raise UserError(f"{where}: found {spec!r}, wanted the name of a policy, or {{id: name, args: {{...}}}}")
    try:
        return build_policy(keys["id"], {**args}, view.setting)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _key(name: str, extra: str) -> str:
    return extra if extra in OF_EPISODE else f"{name}/{extra}"
