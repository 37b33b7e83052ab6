"""Logistic regression on sparse features, without another library. N texts, F features, Z features that are not 0."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
NEWTON_STEPS, CG_STEPS = 50, 100
TOLERANCE = 1e-6  # of the gradient, relative to the first one


@dataclass(frozen=True)
class Features:
    """N texts: V features that are 1 in some texts, given by their `rows` (Z,) and `columns` (Z,); and `dense` ones (N, k)."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    num_sparse: int  # V
    dense: Array

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]], num_sparse: int, dense: Array) -> "Features":
        """From the columns that are 1 in each text."""
        rows = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
        return cls(rows, np.fromiter((c for text in texts for c in text), dtype=np.int64), num_sparse, dense)

    def times(self, weights: Array) -> Array:
        """The product with weights (V + k,): (N,)."""
        found = np.bincount(self.rows, weights[self.columns], minlength=len(self.dense))
        return found + self.dense @ weights[self.num_sparse :]

    def back(self, values: Array) -> Array:
        """The product of the transpose with values (N,): (V + k,)."""
        sparse = np.bincount(self.columns, values[self.rows], minlength=self.num_sparse)
        return np.concatenate([sparse, self.dense.T @ values])


def fit(features: Features, labels: NDArray[np.bool_], penalty: float = 1.0) -> Array:
    """The weights (V + k,) that minimise the summed log loss plus penalty / 2 * |weights|^2, by Newton's method.

    Texts of both labels weigh the same in sum. The last dense feature is the constant, which is not penalised. (A tiny penalty on
    it, 1e-6, keeps the minimum unique.)
    """
    share = labels.mean()
    weigh = np.where(labels, 0.5 / share, 0.5 / (1 - share))
    ridge = np.full(features.num_sparse + features.dense.shape[1], penalty)
    ridge[-1] = 1e-6
    weights, first = np.zeros(len(ridge)), None
    for _ in range(NEWTON_STEPS):
        chances = 1 / (1 + np.exp(-np.clip(features.times(weights), -35, 35)))
        gradient = features.back(weigh * (chances - labels)) + ridge * weights
        size = float(np.linalg.norm(gradient))
        first = size if first is None else first
        if size <= TOLERANCE * first:
            break
        curvature = weigh * chances * (1 - chances)
        step = _solved(features, curvature, ridge, -gradient)
        weights = weights + _length(features, labels, weigh, ridge, weights, step, float(gradient @ step)) * step
    return weights


def _length(
    features: Features,
    labels: NDArray[np.bool_],
    weigh: Array,
    ridge: Array,
    weights: Array,
    step: Array,
    slope: float,
) -> float:
    """How much of a Newton step lowers the loss enough (Armijo)."""

    def loss(at: Array) -> float:
        scores = features.times(at)
        return float(weigh @ np.logaddexp(0.0, np.where(labels, -scores, scores)) + 0.5 * ridge @ at**2)

    before, length = loss(weights), 1.0
    while length > 1e-6 and loss(weights + length * step) > before + 1e-4 * length * slope:
        length /= 2
    return length


def _solved(features: Features, curvature: Array, ridge: Array, wanted: Array) -> Array:
    """The Newton step: the matrix of second derivatives times it is `wanted`, up to 1e-3; by conjugate gradients."""
    solution, left = np.zeros_like(wanted), wanted.copy()
    direction, size = left.copy(), float(left @ left)
    least = 1e-6 * size
    for _ in range(CG_STEPS):
        product = features.back(curvature * features.times(direction)) + ridge * direction
        length = size / float(direction @ product)
        solution, left = solution + length * direction, left - length * product
        before, size = size, float(left @ left)
        if size <= least:
            break
        direction = left + size / before * direction
    return solution
