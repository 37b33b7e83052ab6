"""Kernels of a Gaussian process over beliefs and over actions. N, M observations; D, F features; P parts; A actions.

A part of an observation is a distribution: the values of a slot, the method, what is requested. Its probabilities are sorted,
so that a kernel asks how sure the belief is, not of which value. What a part lacks to a sum of 1 is a place of its own.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import Domain, MultiDomain
from rlhf_dialog.task_oriented.policies.base import Features, PolicySpec
from rlhf_dialog.task_oriented.world.multi_domain.observations import MultiLayout
from rlhf_dialog.task_oriented.world.observations import NUM_COUNTS, Layout
from rlhf_dialog.task_oriented.world.summary_actions import OF_SLOTS, action_names
from rlhf_dialog.task_oriented.world.tracker import DISCOURSE_ACTS, METHODS

Matrix = NDArray[np.float64]
Part = tuple[int, int]  # how many columns, and how many of them, from the first one on, are interchangeable
BELIEF_KERNELS, ACTION_KERNELS = ("polysort", "gausssort", "poly", "gauss"), ("delta", "handcrafted")


def list_parts(setting: PolicySpec, blocks: Sequence[int] | None = None) -> list[Part]:
    """The parts of an observation, in its order: blocks of these sizes, all of whose columns are interchangeable, or those of
    the domain, or a single one without such columns. With several domains each of the zeros and ones is a part, and the last
    action is one. Raises UserError for blocks that do not fill the observation."""
    if blocks is not None:
        sizes = blocks if isinstance(blocks, list | tuple) else ()
        if not all(type(size) is int and size > 0 for size in sizes) or sum(sizes) != setting.num_features:
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
    width `length_scale`); with `sort` in the name they are sorted first. Raises UserError for another name.
    """

    def __init__(self, name: str, parts: Sequence[Part], degree: int = 1, length_scale: float = 0.5):
        if name not in BELIEF_KERNELS:
            raise UserError(f"policy.args.kernel: found {name!r}, wanted one of {', '.join(BELIEF_KERNELS)}")
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

    Raises UserError for another name, and for `handcrafted` where the actions are not those of a domain.
    """
    if name not in ACTION_KERNELS:
        raise UserError(f"policy.args.action_kernel: found {name!r}, wanted one of {', '.join(ACTION_KERNELS)}")
    if name == "delta":
        return np.eye(setting.num_actions)
    domain = setting.domain if isinstance(setting.domain, Domain) else None
    names = action_names(domain) if domain else ()
    if domain is None or len(names) != setting.num_actions:
        raise UserError("policy.args.action_kernel: handcrafted needs the actions of a domain; use delta")
    parted = [(name, *name.split("_", 1)) if "_" in name else (name, name, "") for name in names]
    kinds = np.array([kind if kind in OF_SLOTS and slot in domain.constraints else name for name, kind, slot in parted])
    return similarity * (kinds[:, None] == kinds) + (1 - similarity) * np.eye(len(kinds))
