"""Kernels of a Gaussian process over beliefs and over actions. N, M observations; D, F features; P parts; A actions.

A part of an observation is a distribution: the values of a slot, the method, what is requested. Its probabilities are sorted,
so that a kernel asks how sure the belief is, not of which value. What a part lacks to a sum of 1 is a place of its own.
The posterior is that on a dictionary of points (Engel et al. 2005): sparse, and learned turn by turn. R related actions, M points
of the dictionary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import Domain, MultiDomain
from rlhf_dialog.task_oriented.policies.base import Features, PolicySpec
from rlhf_dialog.task_oriented.world.multi_domain.actions import MultiLayout
from rlhf_dialog.task_oriented.world.summary import NUM_COUNTS, OF_SLOTS, Layout, action_names
from rlhf_dialog.task_oriented.world.tracker import DISCOURSE_ACTS, METHODS

Matrix = NDArray[np.float64]
Part = tuple[int, int]  # how many columns, and how many of them, from the first one on, are interchangeable


def list_parts(setting: PolicySpec, blocks: Sequence[int] | None = None) -> list[Part]:
    """The parts of an observation, in its order: blocks of these sizes, all of whose columns are interchangeable, or those of
    the domain, or a single one without such columns. With several domains each of the zeros and ones is a part, and the last
    action is one. Raises UserError for blocks that do not fill the observation."""
    if blocks is not None:
        if sum(blocks) != setting.num_features:
            raise UserError(
                f"policy.args.blocks: found {blocks!r}, wanted sizes of parts, {setting.num_features} columns in all"
            )
        return [(size, size) for size in blocks]
    several = MultiLayout(setting.domain) if isinstance(setting.domain, MultiDomain) else None
    if several is not None and several.size == setting.num_features:
        return [*[(1, 0)] * several.last_action.start, (len(several.names), 0), (1, 0)]
    layout = Layout(setting.domain) if isinstance(setting.domain, Domain) else None
    if layout is None or layout.size != setting.num_features:
        return [(setting.num_features, 0)]
    slots = [part.stop - part.start for part in layout.slots.values()]
    requested = len(layout.domain.requestable)
    more = [(len(METHODS), 0), (len(DISCOURSE_ACTS), 0), (requested, requested), (1, 0), (1, 0)]
    return [*((size, size - 1) for size in slots), *more, *[(NUM_COUNTS - 1, 0), (1, 0)] * len(slots)]


class BeliefKernel:
    """Similarity of observations, from 0 to 1 (equal): the mean over the parts, to the power of `degree`.

    That of a part is the product of the normalised probabilities (`poly`), or a Gaussian of their distance (`gauss`, of the
    width `length_scale`); with `sort` in the name they are sorted first.
    """

    def __init__(self, name: str, parts: Sequence[Part], degree: int = 1, length_scale: float = 0.5):
        self.is_sorted, self.is_gaussian = name.endswith("sort"), name.startswith("gauss")
        self.degree, self.length_scale = degree, length_scale
        sizes = np.array([size for size, _ in parts])
        rows = zip(parts, sizes.cumsum() - sizes, strict=True)
        places = [start + np.arange(size) * (np.arange(size) >= same) for (size, same), start in rows]
        self._places = np.concatenate(places)  # (D,), equal where columns are interchangeable
        part_of = np.concatenate([np.arange(len(parts)).repeat(sizes), np.arange(len(parts))])
        self._members = np.eye(len(parts))[part_of]  # (F, P)

    @property
    def num_features(self) -> int:
        """F: each column, and what each part lacks."""
        return len(self._members)

    def features(self, observations: Features) -> Matrix:
        """What the kernel compares, (N, F), of observations (N, D)."""
        x = observations.astype(np.float64)
        if self.is_sorted:
            order = np.lexsort((-x, np.broadcast_to(self._places, x.shape)))
            x = np.take_along_axis(x, order, axis=1)
        lacking = np.maximum(1.0 - x @ self._members[: x.shape[1]], 0.0)
        row = np.concatenate([x, lacking], axis=1)
        if self.is_gaussian:
            return row
        norms = np.sqrt(row**2 @ self._members)
        return row / (np.maximum(norms, 1e-12) @ self._members.T) / len(self._members.T) ** 0.5

    def __call__(self, left: Matrix, right: Matrix) -> Matrix:
        """The similarity (N, M) of features (N, F) and (M, F)."""
        if not self.is_gaussian:
            return (left @ right.T) ** self.degree
        squares = (left[:, None] - right) ** 2 @ self._members
        return np.exp(squares / (-2 * self.length_scale**2)).mean(axis=2) ** self.degree


def relate_actions(name: str, setting: PolicySpec, similarity: float) -> Matrix:
    """(A, A): `delta`, or `handcrafted`, where the same act about two slots has this similarity.

    Raises UserError for `handcrafted` where the actions are not those of a domain.
    """
    if name == "delta":
        return np.eye(setting.num_actions)
    domain = setting.domain if isinstance(setting.domain, Domain) else None
    names = action_names(domain) if domain else ()
    if domain is None or len(names) != setting.num_actions:
        raise UserError("policy.args.action_kernel: handcrafted needs the actions of a domain; use delta")
    parted = [(name, *name.split("_", 1)) if "_" in name else (name, name, "") for name in names]
    kinds = np.array([kind if kind in OF_SLOTS and slot in domain.constraints else name for name, kind, slot in parted])
    return similarity * (kinds[:, None] == kinds) + (1 - similarity) * np.eye(len(kinds))


DEPENDENT = 1e-9  # of the prior variance: what is new about a point is rounding below that
BLOCK_STATE = ("points", "actions", "factor", "precision", "shift")


class ActionBlock:
    """Q of actions that the kernel relates to each other and to no other one.

    L L' is the Gram matrix of the dictionary. In the basis L^-1 k the prior of the weights is N(0, I); `precision` (M, M) and
    `shift` (M,), the precision times the mean, are those of the posterior. A point that joins adds a row to L, and a weight that
    earlier turns do not depend on: they keep the projections of their time, as in Engel's sparse posterior.
    """

    def __init__(self, belief: BeliefKernel, relations: Matrix, related: Sequence[int], variance: float):
        self.belief, self.relations, self.prior_variance = belief, relations, variance
        self.related = np.array(related, dtype=np.int64)
        self.points, self.actions = np.zeros((0, belief.num_features)), np.zeros(0, dtype=np.int64)
        self.factor, self.precision, self.shift = np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0)
        self.refresh()

    def learn(self, features: Matrix, action: int, value: float, noise: float, novelty: float) -> None:
        """Take in one turn: features (1, F) with an action were worth `value`, give or take the variance `noise`.

        It joins the dictionary if more of its variance than `novelty` is left when the dictionary is known.
        """
        similarity = self.belief(features, self.points) * self.relations[action, self.actions]
        row = _solve(self.factor, self.prior_variance * similarity.T)[:, 0]
        left = self.prior_variance - row @ row
        if left > max(novelty, DEPENDENT * self.prior_variance):
            self.points, self.actions = np.concatenate([self.points, features]), np.append(self.actions, action)
            row = np.append(row, left**0.5)
            self.factor, self.precision = (np.pad(x, (0, 1)) for x in (self.factor, self.precision))
            self.factor[-1], self.precision[-1, -1] = row, 1.0
            self.shift = np.append(self.shift, 0.0)
        self.precision += np.outer(row, row) / noise
        self.shift += row * (value / noise)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from these arrays, named as in `BLOCK_STATE`. Raises ValueError for points of another size."""
        if state["points"].ndim == 2 and state["points"].shape[1] != self.points.shape[1]:
            raise ValueError(f"saved with {state['points'].shape[1]} features, but these are {self.points.shape[1]}")
        num = len(state["shift"]) if state["shift"].ndim else -1
        shapes = (num, self.points.shape[1]), (num,), (num, num), (num, num), (num,)
        for name, shape in zip(BLOCK_STATE, shapes, strict=True):
            x, dtype = state[name], getattr(self, name).dtype
            if x.shape != shape or x.dtype != dtype or not np.isfinite(x).all():
                raise ValueError(f"{name} is {x.dtype} {x.shape}, or has NaN; {dtype} {shape} is wanted")
        if not np.isin(state["actions"], self.related).all():
            raise ValueError("actions has one that does not belong to its part")
        self.points, self.actions, self.factor, self.precision, self.shift = (
            state[name].copy() for name in BLOCK_STATE
        )
        self.refresh()

    def refresh(self) -> None:
        """Prepare the posterior of what was learned."""
        root: Any = np.linalg.cholesky(self.precision)
        self._known = _solve(self.factor, np.eye(len(root)))
        self._learned = _solve(root, self._known)
        self._coefficients = self._learned.T @ _solve(root, self.shift[:, None])[:, 0]

    def posterior(self, similarity: Matrix) -> tuple[Matrix, Matrix]:
        """Mean and variance (N, R) of the related actions where beliefs have this similarity (N, M) with the dictionary's."""
        relations = self.prior_variance * self.relations[np.ix_(self.related, self.actions)]
        covariances = similarity[:, None] * relations
        basis, learned = covariances @ self._known.T, covariances @ self._learned.T
        variance = self.prior_variance - (basis**2).sum(axis=2) + (learned**2).sum(axis=2)
        return covariances @ self._coefficients, np.maximum(variance, 0.0)


def _solve(lower: Matrix, right: Matrix) -> Matrix:
    """The solution (M, K) of `lower` (M, M, triangular) times it = `right` (M, K)."""
    solved: Matrix = torch.linalg.solve_triangular(
        torch.from_numpy(np.ascontiguousarray(lower)), torch.from_numpy(np.ascontiguousarray(right)), upper=False
    ).numpy()
    return solved
