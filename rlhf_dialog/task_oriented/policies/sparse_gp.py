"""The posterior of a Gaussian process on a dictionary of points (Engel et al. 2005): sparse, and learned turn by turn.

N observations, F features, A actions, R related actions, M points of the dictionary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rlhf_dialog.task_oriented.policies.kernels import BeliefKernel, Matrix

DEPENDENT = 1e-9  # of the prior variance: what is new about a point is rounding below that
STATE = ("points", "actions", "factor", "precision", "shift")


class ActionBlock:
    """Q of actions that the kernel relates to each other and to no other one.

    L L' is the Gram matrix of the dictionary. In the basis L^-1 k the prior of the weights is N(0, I); `precision` (M, M) and
    `shift` (M,), the precision times the mean, are those of the posterior. A point that joins adds a row to L, and a weight that
    earlier turns do not depend on: they keep the projections of their time, as in Engel's sparse posterior.
    """

    def __init__(self, belief: BeliefKernel, relations: Matrix, related: Sequence[int], variance: float):
        self.belief = belief
        self.relations = relations
        self.prior_variance = variance
        self.related = np.array(related, dtype=np.int64)
        self.points, self.actions = np.zeros((0, belief.num_features)), np.zeros(0, dtype=np.int64)
        self.factor = np.zeros((0, 0))
        self.precision = np.zeros((0, 0))
        self.shift = np.zeros(0)
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
        """Go on from these arrays, named as in `STATE`. Raises ValueError for points of another size."""
        if state["points"].ndim == 2 and state["points"].shape[1] != self.points.shape[1]:
            raise ValueError(f"saved with {state['points'].shape[1]} features, but these are {self.points.shape[1]}")
        num = len(state["shift"]) if state["shift"].ndim else -1
        shapes = (num, self.points.shape[1]), (num,), (num, num), (num, num), (num,)
        for name, shape in zip(STATE, shapes, strict=True):
            x, dtype = state[name], getattr(self, name).dtype
            if x.shape != shape or x.dtype != dtype or not np.isfinite(x).all():
                raise ValueError(f"{name} is {x.dtype} {x.shape}, or has NaN; {dtype} {shape} is wanted")
        if not np.isin(state["actions"], self.related).all():
            raise ValueError("actions has one that does not belong to its part")
        self.points, self.actions, self.factor, self.precision, self.shift = (state[name].copy() for name in STATE)
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
