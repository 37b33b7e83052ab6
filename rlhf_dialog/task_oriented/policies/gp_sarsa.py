"""GP-SARSA (Gasic and Young 2014; Engel et al. 2005): Q is a Gaussian process, learned from whole dialogues.

For the rewards of a dialogue r ~ N(H Q, sigma^2 H H'), and H^-1 r are its returns: the posterior is the regression of Q on the
returns with the noise sigma. Dialogues are then independent given Q, and so are actions that the kernel does not relate: each
group of related actions has an `ActionBlock` of its own.
N observations, T turns, D features of an observation, A actions.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, Optional

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, dataclasses
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.json_files import FAULTS, damage_as_user_error, load_json
from rlhf_dialog.task_oriented.policies import kernels
from rlhf_dialog.task_oriented.policies.arguments import STRICT, Sizes, ranged, read_arguments
from rlhf_dialog.task_oriented.policies.base import Actions, Episode, Extras, Features, Masks, PolicyFactory, PolicySpec

STATE, TENSORS = "policy.json", "policy.safetensors"
COLUMNS = ("observations", "actions", "rewards", "weights")


class GPState(BaseModel):
    """What the file of this policy has besides tensors."""

    args: dict[str, Any]
    num_dialogues: int
    turns: list[Annotated[list[int | bool], Field(min_length=3, max_length=3)]]
    prior: Optional["GPState"]


@dataclass
class Turns:
    """What is kept of a dialogue until it is learned: observations (T, D), actions, rewards and weights (T,), from turn `start`
    on. A turn of the weight 1/2 counts like half a turn, one of the weight 0 only through its reward."""

    dialogue: int
    start: int
    ended: bool
    observations: Features
    actions: Actions
    rewards: NDArray[np.float32]
    weights: NDArray[np.float32]

    def returns(self, gamma: float) -> kernels.Matrix:
        """The discounted sums (T,) of the rewards from each turn to the end. Raises RunStopped when a number is not finite."""
        sums = list(accumulate(self.rewards[::-1].tolist(), lambda later, reward: reward + gamma * later))
        if not (np.isfinite(sums).all() and np.isfinite(self.observations).all()):
            raise RunStopped(f"dialogue {self.dialogue}: a reward or a belief is not finite")
        return np.array(sums[::-1])


@dataclasses.dataclass(frozen=True, config=STRICT)
class GPSarsaArguments:
    """kernel: polysort, gausssort, or without sorting poly, gauss; degree, length_scale: of `BeliefKernel`

    action_kernel: delta, or handcrafted, where the same act about two slots has the covariance `similarity`
    blocks: sizes of the parts of an observation; default: the domain's parts, or one part that is not sorted
    prior_mean, prior_deviation: of Q before a dialogue is known, in the unit of the returns
    prior: folder of an earlier gp_sarsa whose mean is added to prior_mean; what is saved holds a copy of it
    sigma: deviation of a return from its Q; gamma: discount
    nu, relative_nu: a turn joins the dictionary above this variance, and above this share of the prior's; max_points: all in all
    scale: of the posterior's deviation while exploring; -1 takes the mean
    """

    kernel: Literal["polysort", "gausssort", "poly", "gauss"] = "polysort"
    degree: int = ranged(1, 1, 10)
    length_scale: float = ranged(0.5, 1e-6, 1e6)
    action_kernel: Literal["delta", "handcrafted"] = "delta"
    similarity: float = ranged(0.5, 0.0, 1.0)
    blocks: Sizes | None = None
    prior_mean: float = ranged(0.0, -1e6, 1e6)
    prior_deviation: float = ranged(20.0, 1e-6, 1e6)
    prior: str | None = None
    sigma: float = ranged(5.0, 1e-6, 1e6)
    gamma: float = ranged(1.0, 0.0, 1.0)
    nu: float = ranged(0.001, 0.0, 1e6)
    relative_nu: float = ranged(0.02, 0.0, 1.0)
    max_points: int = ranged(2000, 1, 10**5)
    scale: float = ranged(1.0, -1e6, 1e6)

    def to_dict(self) -> dict[str, Any]:
        """What is written with a policy, and must be the same where it is loaded; what `prior` names is saved with it."""
        kept = asdict(self) | {"blocks": self.blocks and list(self.blocks)}
        del kept["prior"]
        return kept


@PolicyFactory.register("gp_sarsa")
class GPSarsa:
    """Chooses the allowed action with the largest draw from the posterior of its Q; deterministic: with the largest mean."""

    arguments = GPSarsaArguments

    def __init__(self, setting: PolicySpec, **args: Any):
        self.setting, self.args = setting, read_arguments(self.arguments, args)
        prior_variance = self.args.prior_deviation**2
        self.noise, self.novelty = self.args.sigma**2, max(self.args.nu, self.args.relative_nu * prior_variance)
        self.prior: GPSarsa | None = None
        parts = kernels.list_parts(setting, self.args.blocks)
        self.belief = kernels.BeliefKernel(self.args.kernel, parts, self.args.degree, self.args.length_scale)
        relations = kernels.relate_actions(self.args.action_kernel, setting, self.args.similarity)
        groups = sorted({tuple(np.flatnonzero(row).tolist()) for row in relations})
        self.blocks = [kernels.ActionBlock(self.belief, relations, group, prior_variance) for group in groups]
        self.num_dialogues = 0
        self._open: dict[int, Turns] = {}
        self._ended: list[Turns] = []

    @property
    def num_points(self) -> int:
        """The size of the dictionary, all in all."""
        return sum(len(block.points) for block in self.blocks)

    def act(
        self, observations: Features, masks: Masks, deterministic: bool, streams: Sequence[Random] = ()
    ) -> tuple[Actions, Extras]:
        """observations (N, D), masks (N, A) -> actions (N,) and values (N,), the posterior means of their Q.

        A stream draws a normal number for each of the A actions.
        """
        mean, variance = self.posterior(observations)
        worth = mean
        if not deterministic and self.args.scale > 0:
            draws = [[stream.gauss(0.0, 1.0) for _ in row] for stream, row in zip(streams, masks, strict=True)]
            worth = mean + self.args.scale * np.sqrt(variance) * draws
        actions = np.where(masks, worth, -np.inf).argmax(axis=1).astype(np.int64)
        return actions, {"values": _taken(mean, actions).astype(np.float32)}

    def posterior(self, observations: Features) -> tuple[kernels.Matrix, kernels.Matrix]:
        """Mean and variance (N, A) of Q for observations (N, D)."""
        similarity = self.belief(
            self.belief.features(observations), np.concatenate([block.points for block in self.blocks])
        )
        mean, variance = self._prior_mean(observations), np.empty((len(observations), self.setting.num_actions))
        start = 0
        for block in self.blocks:
            of_block = similarity[:, start : start + len(block.points)]
            learned, variance[:, block.related] = block.posterior(of_block)
            mean[:, block.related] += learned
            start += len(block.points)
        return mean, variance

    def observe(self, episode: Episode) -> None:
        """Keep the turns until the dialogue has ended. A piece whose beginning was not seen is learned for itself.
        `weights` (T,) among the extras is how much each turn counts, from 0 to 1; without it, 1."""
        weights = episode.extras.get("weights", np.ones(len(episode), dtype=np.float32))
        columns = [*(getattr(episode, name) for name in COLUMNS[:-1]), weights]
        turns = Turns(episode.dialogue, episode.start, episode.ended, *columns)
        before = self._open.pop(episode.dialogue, None)
        if before is not None and before.start + len(before.actions) == turns.start:
            columns = [np.concatenate([getattr(before, name), getattr(turns, name)]) for name in COLUMNS]
            turns = Turns(turns.dialogue, before.start, turns.ended, *columns)
        if turns.ended:
            self._ended.append(turns)
        else:
            self._open[episode.dialogue] = turns

    def update(self) -> dict[str, float]:
        """Learn from the dialogues that have ended since the last update. gp/error: of the means, before that."""
        ended, self._ended = self._ended, []
        errors = [x.returns(self.args.gamma) - _taken(self.posterior(x.observations)[0], x.actions) for x in ended]
        for turns in ended:
            self._learn(turns)
        for block in self.blocks:
            block.refresh()
        self.num_dialogues += len(ended)
        metrics = {"gp/points": float(self.num_points), "gp/dialogues": float(self.num_dialogues)}
        return metrics | ({"gp/error": float((np.concatenate(errors) ** 2).mean() ** 0.5)} if errors else {})

    def save(self, folder: str | Path) -> None:
        save_file(self._tensors(), Path(folder) / TENSORS)
        write_json(Path(folder) / STATE, self._state())

    def load(self, folder: str | Path) -> None:
        folder = Path(folder)
        faults = (*FAULTS, SafetensorError, np.linalg.LinAlgError, RuntimeError)
        with damage_as_user_error(f"{folder}: does not fit this policy, or is damaged: ", faults=faults):
            self._restore(load_json(folder / STATE, GPState), load_file(folder / TENSORS))

    def _prior_mean(self, observations: Features) -> kernels.Matrix:
        """The prior means (N, A)."""
        if self.prior is None and self.args.prior is not None:
            self.prior = load_prior(self.args.prior, self.setting)
        constant = np.full((len(observations), self.setting.num_actions), float(self.args.prior_mean))
        return constant if self.prior is None else constant + self.prior.posterior(observations)[0]

    def _learn(self, turns: Turns) -> None:
        features = self.belief.features(turns.observations)
        values = turns.returns(self.args.gamma) - _taken(self._prior_mean(turns.observations), turns.actions)
        rows = zip(features, turns.actions.tolist(), values.tolist(), turns.weights.tolist(), strict=True)
        for row, action, value, weight in (turn for turn in rows if turn[-1] > 0):
            novelty = self.novelty if self.num_points < self.args.max_points else np.inf
            block = next(block for block in self.blocks if action in block.related)
            block.learn(row[None], action, value, self.noise / weight, novelty)

    def _tensors(self) -> dict[str, NDArray[Any]]:
        prior = {} if self.prior is None else self.prior._tensors()
        tensors = {f"prior.{name}": x for name, x in prior.items()}
        for number, block in enumerate(self.blocks):
            tensors |= {f"blocks.{number}.{name}": getattr(block, name) for name in kernels.BLOCK_STATE}
        for number, turns in enumerate([*self._ended, *self._open.values()]):
            tensors |= {f"turns.{number}.{name}": getattr(turns, name) for name in COLUMNS}
        return tensors

    def _state(self) -> dict[str, Any]:
        turns = [[x.dialogue, x.start, x.ended] for x in (*self._ended, *self._open.values())]
        prior = None if self.prior is None else self.prior._state()
        return {"args": self.args.to_dict(), "num_dialogues": self.num_dialogues, "turns": turns, "prior": prior}

    def _restore(self, state: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> None:
        then, now = state["args"], self.args.to_dict()
        if names := [name for name in {**then, **now} if then.get(name) != now.get(name) or name not in now]:
            then, now = ({name: args.get(name) for name in names} for args in (then, now))
            raise ValueError(f"saved with the arguments {then}, but these are {now}")
        for number, block in enumerate(self.blocks):
            block.restore({name: tensors[f"blocks.{number}.{name}"] for name in kernels.BLOCK_STATE})
        self.num_dialogues = state["num_dialogues"]
        columns = [[tensors[f"turns.{n}.{name}"] for name in COLUMNS] for n in range(len(state["turns"]))]
        for column in columns:
            shapes = [x.shape for x in column]
            if not shapes[0] or shapes != [(len(column[0]), self.setting.num_features), *[(len(column[0]),)] * 3]:
                raise ValueError(f"the turns of a dialogue have the shapes {shapes}")
        turns = [Turns(*head, *column) for head, column in zip(state["turns"], columns, strict=True)]
        self._ended, self._open = [x for x in turns if x.ended], {x.dialogue: x for x in turns if not x.ended}
        if state["prior"] is not None:
            self.prior = GPSarsa(self.setting, **state["prior"]["args"])
            of_prior = {name.removeprefix("prior."): x for name, x in tensors.items() if name.startswith("prior.")}
            self.prior._restore(state["prior"], of_prior)


def load_prior(folder: str | Path, setting: PolicySpec) -> GPSarsa:
    """The policy that was saved in this folder, for the same sizes. Raises UserError when there is none."""
    with damage_as_user_error(f"policy.args.prior: {folder} holds no gp_sarsa; name RUN/agent (", ")"):
        policy = GPSarsa(setting, **load_json(Path(folder) / STATE)["args"])
    policy.load(folder)
    return policy


def _taken(table: kernels.Matrix, actions: Actions) -> kernels.Matrix:
    """Of a table (T, A) the entries (T,) of the actions (T,)."""
    return table[np.arange(len(actions)), actions]
