"""Kernels of beliefs and actions: symmetric, positive semi-definite, blind to the names of values when they are sorted.

The posterior on a dictionary: that of the full kernel matrix when every point joins, and Engel's projections when few do."""

import numpy as np
import pytest

from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.kernels import (
    BELIEF_KERNELS,
    ActionBlock,
    BeliefKernel,
    list_parts,
    relate_actions,
)
from rlhf_dialog.task_oriented.world.multi_domain.actions import MultiLayout
from rlhf_dialog.task_oriented.world.summary import Layout, action_names
from tests.parts.small_domain import small_domain
from tests.parts.small_world import small_world

DOMAIN = small_domain()
LAYOUT = Layout(DOMAIN)
NAMES = action_names(DOMAIN)
SETTING = PolicySpec(LAYOUT.size, len(NAMES), domain=DOMAIN)


def beliefs(count, seed=0):
    """Observations (N, D) whose parts that are distributions sum to 1, with zeros among them."""
    rng = np.random.default_rng(seed)
    rows = rng.random((count, LAYOUT.size)) * (rng.random((count, LAYOUT.size)) < 0.6)
    for part in (*LAYOUT.slots.values(), LAYOUT.method):
        rows[:, part] = rng.dirichlet(np.full(part.stop - part.start, 0.3), size=count)
    return rows.astype(np.float32)


def kernel(name, **args):
    return BeliefKernel(name, list_parts(SETTING), **args)


def gram(found, rows, others=None):
    return found(found.features(rows), found.features(rows if others is None else others))


def permuted(rows, slot, order):
    part, changed = LAYOUT.slots[slot], rows.copy()
    changed[:, part.start : part.stop - 1] = rows[:, part.start : part.stop - 1][:, order]
    return changed


def test_the_parts_fill_the_observation_and_a_value_may_stand_for_each_other_one_but_none():
    parts = list_parts(SETTING)
    assert sum(size for size, _ in parts) == LAYOUT.size
    sizes = [part.stop - part.start for part in LAYOUT.slots.values()]
    assert parts[: len(sizes)] == [(size, size - 1) for size in sizes]
    # method, discourse act, four requestable slots, two flags; how many entities fit and whether they differ, for each slot
    assert parts[len(sizes) :] == [(6, 0), (6, 0), (4, 4), (1, 0), (1, 0), (4, 0), (1, 0), (4, 0), (1, 0)]
    assert list_parts(PolicySpec(7, 2)) == [(7, 0)]
    layout = MultiLayout(small_world())
    assert list_parts(PolicySpec(7, 2, domain=small_world())) == [(7, 0)]
    several = list_parts(PolicySpec(layout.size, len(layout.names), domain=small_world()))
    assert several == [*[(1, 0)] * (layout.size - 1 - len(layout.names)), (len(layout.names), 0), (1, 0)]
    assert list_parts(PolicySpec(7, 2), [4, 3]) == [(4, 4), (3, 3)]


@pytest.mark.parametrize("name", BELIEF_KERNELS)
def test_a_gram_matrix_is_symmetric_positive_semi_definite_and_one_on_its_diagonal(name):
    found = gram(kernel(name, degree=2), np.concatenate([beliefs(40), np.zeros((1, LAYOUT.size), np.float32)]))
    np.testing.assert_allclose(found, found.T, atol=1e-14)
    np.testing.assert_allclose(found.diagonal(), 1.0, atol=1e-12)
    assert np.linalg.eigvalsh(found).min() > -1e-12
    assert found.min() >= 0.0
    assert found.max() <= 1 + 1e-12


@pytest.mark.parametrize("name", BELIEF_KERNELS)
def test_only_sorted_kernels_are_blind_to_which_value_is_believed(name):
    rows, others = beliefs(10), beliefs(10, seed=1)
    for slot, part in LAYOUT.slots.items():
        order = np.random.default_rng(2).permutation(part.stop - part.start - 1)
        moved = permuted(rows, slot, order)
        assert (moved != rows).any()
        same = np.array_equal(gram(kernel(name), moved, others), gram(kernel(name), rows, others))
        assert same == name.endswith("sort")


def slow(name, one, other, parts, degree, length_scale):
    """The definition, part by part and in plain Python, of two observations (D,)."""
    total, start = 0.0, 0
    for size, same in parts:
        x, y = (row[start : start + size].astype(np.float64).tolist() for row in (one, other))
        if name.endswith("sort"):
            x, y = (sorted(v[:same], reverse=True) + v[same:] for v in (x, y))
        x, y = ([*v, max(0.0, 1 - sum(v))] for v in (x, y))
        if name.startswith("gauss"):
            total += np.exp(-sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / (2 * length_scale**2))
        else:
            norms = sum(a * a for a in x) * sum(b * b for b in y)
            total += sum(a * b for a, b in zip(x, y, strict=True)) / norms**0.5
        start += size
    return (total / len(parts)) ** degree


@pytest.mark.parametrize("name", BELIEF_KERNELS)
def test_the_kernel_is_its_definition(name):
    rows, args = beliefs(6), {"degree": 2, "length_scale": 0.3}
    expected = [[slow(name, one, other, list_parts(SETTING), **args) for other in rows] for one in rows]
    np.testing.assert_allclose(gram(kernel(name, **args), rows), expected, atol=1e-12)


def test_the_handcrafted_action_kernel_relates_the_same_act_about_other_slots_only():
    found = relate_actions("handcrafted", SETTING, 0.4)
    at = {name: number for number, name in enumerate(NAMES)}
    assert found[at["request_tea"], at["request_area"]] == found[at["select_area"], at["select_tea"]] == 0.4
    assert found[at["request_tea"], at["confirm_tea"]] == found[at["inform"], at["inform_byname"]] == 0.0
    np.testing.assert_array_equal(found.diagonal(), 1.0)
    assert np.linalg.eigvalsh(found).min() > 0
    np.testing.assert_array_equal(relate_actions("delta", SETTING, 0.4), np.eye(len(NAMES)))


VARIANCE, NOISE = 9.0, 4.0
KERNEL = BeliefKernel("gauss", [(2, 0), (1, 0)], length_scale=0.4)
RELATIONS = np.array([[1.0, 0.3], [0.3, 1.0]])


def turns(count, seed=0):
    rng = np.random.default_rng(seed)
    features = KERNEL.features(rng.random((count, 3)).astype(np.float32))
    return features, rng.integers(2, size=count), rng.normal(3.0, 5.0, size=count)


def block(novelty, features, actions, values):
    found = ActionBlock(KERNEL, RELATIONS, [0, 1], VARIANCE)
    for row, action, value in zip(features, actions.tolist(), values, strict=True):
        found.learn(row[None], action, value, NOISE, novelty)
    found.refresh()
    return found


def covariance(one, its, other, others):
    return VARIANCE * KERNEL(one, other) * RELATIONS[np.ix_(its, others)]


def full_posterior(known, values, asked, projections=None):
    """Mean and variance by the full matrices; `projections` (N, M) of the turns on the points `known`, else each is a point."""
    gram = covariance(*known, *known)
    a = np.eye(len(gram)) if projections is None else projections
    noisy = a @ gram @ a.T + NOISE * np.eye(len(a))
    across = covariance(*asked, *known) @ a.T
    reduced = np.linalg.solve(noisy, across.T)
    return across @ np.linalg.solve(noisy, values), VARIANCE - (across * reduced.T).sum(axis=1)


def asked_of(found, features):
    mean, variance = found.posterior(KERNEL(features, found.points))
    return mean.ravel(), variance.ravel()


def test_it_is_the_posterior_of_the_full_kernel_matrix_when_every_turn_joins():
    features, actions, values = turns(20)
    found = block(0.0, features, actions, values)
    assert len(found.points) == 20
    others = turns(7, seed=1)[0]
    rows, its = others.repeat(2, axis=0), np.tile([0, 1], 7)
    mean, variance = full_posterior((features, actions), values, (rows, its))
    np.testing.assert_allclose(asked_of(found, others), (mean, variance), rtol=1e-7)
    assert variance.min() > 0


def test_it_is_engels_sparse_posterior_when_few_turns_join():
    features, actions, values = turns(60)
    found = block(0.5, features, actions, values)
    points, projections = [], np.zeros((60, 60))
    for number in range(60):  # approximate linear dependence, each projection on the dictionary of its time
        at = (features[[number]], actions[[number]])
        if points:
            known = features[points], actions[points]
            weights = np.linalg.solve(covariance(*known, *known), covariance(*known, *at))[:, 0]
            left = VARIANCE - weights @ covariance(*known, *at)[:, 0]
        if not points or left > 0.5:
            points, weights = [*points, number], np.eye(len(points) + 1)[-1]
        projections[number, : len(weights)] = weights
    assert 10 < len(points) < 50
    np.testing.assert_array_equal(found.points, features[points])
    others = turns(7, seed=1)[0]
    asked = others.repeat(2, axis=0), np.tile([0, 1], 7)
    expected = full_posterior((features[points], actions[points]), values, asked, projections[:, : len(points)])
    np.testing.assert_allclose(asked_of(found, others), expected, rtol=1e-6)


def test_a_turn_that_is_known_already_does_not_join_and_counts_all_the_same():
    features, actions, values = turns(5)
    found = block(0.0, *(np.concatenate([x, x]) for x in (features, actions, values)))
    assert len(found.points) == 5
    once = block(0.0, features, actions, values)
    assert (asked_of(found, features)[1] < asked_of(once, features)[1]).all()
    assert np.isfinite(asked_of(found, features)).all()
