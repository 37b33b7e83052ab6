"""The Bayesian committee machine (Tresp 2000; Gasic et al. 2015): GP-SARSA policies of one domain each decide together.

N observations, T turns, M members, A actions.
"""

import itertools
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.arguments import STRICT, Sizes, constant, read_arguments
from rlhf_dialog.task_oriented.policies.base import Actions, Episode, Extras, Features, Masks, PolicyFactory, PolicySpec
from rlhf_dialog.task_oriented.policies.gp_sarsa import GPSarsa, GPSarsaArguments
from rlhf_dialog.task_oriented.policies.kernels import Matrix
from rlhf_dialog.task_oriented.policies.multi_domain import abstraction as abstractions
from rlhf_dialog.task_oriented.policies.multi_domain.abstraction import SlotMapping
from rlhf_dialog.task_oriented.policies.multi_domain.views import EpisodeBuffer, Rows, Views, save_parts

ABSTRACTION = "abstraction.json"
Q = NDArray[np.float64]  # (M, N, A)


def combine_opinions(means: Q, variances: Q, prior_mean: float, prior_variance: float) -> tuple[Matrix, Matrix]:
    """Mean and variance (N, A) of all members (M, N, A) together: their precisions are added, and the prior counts once.

    >>> mean, variance = combine_opinions(np.array([[[8.0]], [[2.0]]]), np.array([[[4.0]], [[2.0]]]), 0.0, 8.0)
    >>> float(mean[0, 0]), float(variance[0, 0])  # (8/4 + 2/2) / (1/4 + 1/2 - 1/8), 1 / (1/4 + 1/2 - 1/8)
    (4.8, 1.6)
    """
    precisions, surplus = 1.0 / np.maximum(variances, 1e-9 * prior_variance), (len(means) - 1) / prior_variance
    precision = np.maximum(precisions.sum(axis=0) - surplus, 1.0 / prior_variance)
    return ((precisions * means).sum(axis=0) - surplus * prior_mean) / precision, 1.0 / precision


@dataclass(frozen=True, config=STRICT)
class CommitteeArguments(GPSarsaArguments):
    """members: domains that have a gp_sarsa of their own, by default all; the others are decided by the members alone

    learning: what the part of a member in an action (its share of the precision, `weights` of the episode) does when the turn is
    learned: `evidence`, the turn counts so much for it; `reward`, it gets so much of the reward; `own`: only the domain's own
    member learns
    abstraction: JSON file of the slots that stand for each other; default: by entropy (`make_abstraction`); saved with the policy
    The other arguments are those of the members.
    """

    action_kernel: Literal["delta", "handcrafted"] = constant("delta")
    similarity: float = constant(0.5)
    blocks: Sizes | None = constant(None)
    prior: str | None = constant(None)
    members: Annotated[Sequence[str], Field(min_length=1)] | None = None
    learning: Literal["evidence", "reward", "own"] = "evidence"
    abstraction: str | None = None


@PolicyFactory.register("committee")
class Committee:
    """Takes the allowed action of the active domain with the largest draw from the committee's posterior of Q."""

    def __init__(self, setting: PolicySpec, **args: Any):
        self.args = read_arguments(CommitteeArguments, args)
        self.views, members = Views(setting, "committee"), self.args.members
        names = list(self.views.by_name) if members is None else members
        if len(set(names)) < len(names):
            raise UserError(f"policy.args.members: found {members!r}; name each domain once")
        self.views.check(names, "policy.args.members")
        member_arguments = {each.name: getattr(self.args, each.name) for each in fields(GPSarsaArguments)}
        self.members = {name: GPSarsa(self.views.by_name[name].setting, **member_arguments) for name in names}
        self.prior_variance = float(self.args.prior_deviation) ** 2
        domain, path = self.views.domain, self.args.abstraction
        self._connect(abstractions.read_abstraction(path, domain) if path else abstractions.make_abstraction(domain))
        self._pieces = EpisodeBuffer()

    def act(
        self, observations: Features, masks: Masks, deterministic: bool, streams: Sequence[Random] = ()
    ) -> tuple[Actions, Extras]:
        """observations (N, D), masks (N, A) -> actions (N,), values (N,), the means of their Q, and weights (N, M).

        A stream draws a normal number for each of the A actions.
        """
        means, variances, possible = self.opinions(observations)
        mean, variance = combine_opinions(means, variances, self.args.prior_mean, self.prior_variance)
        worth, rows = mean, np.arange(len(observations))
        if not deterministic and self.args.scale > 0:
            draws = [[stream.gauss(0.0, 1.0) for _ in row] for stream, row in zip(streams, masks, strict=True)]
            worth = mean + self.args.scale * np.sqrt(variance) * draws
        allowed = masks & possible
        allowed = np.where(allowed.any(axis=1, keepdims=True), allowed, masks)
        actions = np.where(allowed, worth, -np.inf).argmax(axis=1).astype(np.int64)
        weights = self._weights(observations, actions, variances)
        return actions, {"values": mean[rows, actions].astype(np.float32), "weights": weights}

    def opinions(self, observations: Features) -> tuple[Q, Q, Masks]:
        """The members' means and variances (M, N, A) of Q, those of the prior where a member knows no such action; and (N, A),
        True for the actions of the active domain and the global ones."""
        shape = len(self.members), len(observations), self.views.num_actions
        means, variances = np.full(shape, float(self.args.prior_mean)), np.full(shape, self.prior_variance)
        possible = np.zeros(shape[1:], dtype=np.bool_)
        for view, rows in self.views.groups(observations):
            possible[np.ix_(rows, view.actions)] = True
            for number, (name, member) in enumerate(self.members.items()):
                bridge = self.bridges[name, view.name]
                tables = member.posterior(bridge.observations(observations[rows]))
                for table, values in zip((means, variances), tables, strict=True):
                    table[number][np.ix_(rows, bridge.actions[:, 0])] = values[:, bridge.actions[:, 1]]
        return means, variances, possible

    def observe(self, episode: Episode) -> None:
        """Keep the pieces of a dialogue until it has ended; then the members get its turns, each as those of its own domain."""
        whole = self._pieces.join_episode(episode)
        if whole is None:
            return
        for view, part in self.views.split(whole):
            weights = part.extras.get("weights")
            if weights is None:
                weights = self._weights(part.observations, part.actions, self.opinions(part.observations)[1])
            for number, (name, member) in enumerate(self.members.items()):
                if weights[:, number].any():
                    member.observe(self._seen_by(self.bridges[name, view.name], part, weights[:, number]))

    def update(self) -> dict[str, float]:
        """All members learn; their metrics have their names before them."""
        updates = {name: member.update() for name, member in self.members.items()}
        return {f"{name}/{key}": value for name, metrics in updates.items() for key, value in metrics.items()}

    def save(self, folder: str | Path) -> None:
        """Write each member into a folder of its name, the abstraction, and the pieces that wait for their end."""
        save_parts(Path(folder), self.members)
        abstractions.write_abstraction(Path(folder) / ABSTRACTION, self.abstraction)
        self._pieces.save(Path(folder))

    def load(self, folder: str | Path) -> None:
        for name, member in self.members.items():
            member.load(Path(folder) / name)
        self._connect(abstractions.read_abstraction(Path(folder) / ABSTRACTION, self.views.domain))
        self._pieces.load(Path(folder))

    def _connect(self, abstraction: dict[str, dict[str, str]]) -> None:
        self.abstraction, views = abstraction, self.views.by_name
        pairs = itertools.product(self.members, views)
        self.bridges = {(one, other): SlotMapping(abstraction, views[one], views[other]) for one, other in pairs}

    def _weights(self, observations: Features, actions: Actions, variances: Q) -> NDArray[np.float32]:
        """The parts (N, M) of the members in the actions; their sum is 1, or 0 where no member knows the action."""
        knows_action = np.zeros((len(self.members), len(observations)), dtype=np.bool_)
        for view, rows in self.views.groups(observations):
            for number, name in enumerate(self.members):
                is_own = name == view.name
                knows = np.isin(actions[rows], self.bridges[name, view.name].actions[:, 0])
                knows_action[number, rows] = knows & (is_own or self.args.learning != "own")
        precisions = knows_action / np.maximum(
            variances[:, np.arange(len(actions)), actions], 1e-9 * self.prior_variance
        )
        return (precisions / np.maximum(precisions.sum(axis=0), 1e-300)).T.astype(np.float32)

    def _seen_by(self, bridge: SlotMapping, part: Episode, weights: NDArray[np.float32]) -> Episode:
        """The turns of a domain as a member learns them; an action that it does not know has the weight 0."""
        numbers: Rows = np.zeros(self.views.num_actions, dtype=np.int64)
        numbers[bridge.actions[:, 0]] = bridge.actions[:, 1]
        shared, counts = (weights, weights > 0) if self.args.learning == "reward" else (np.ones_like(weights), weights)
        return replace(
            part,
            observations=bridge.observations(part.observations),
            actions=numbers[part.actions],
            rewards=part.rewards * shared,
            extras={"weights": counts.astype(np.float32)},
            start=0,
        )
