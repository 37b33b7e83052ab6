"""The posterior on a dictionary: that of the full kernel matrix when every point joins, and Engel's projections when few do."""

import numpy as np

from rlhf_dialog.task_oriented.policies.kernels import BeliefKernel
from rlhf_dialog.task_oriented.policies.sparse_gp import ActionBlock

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
    twice = [np.concatenate([x, x]) for x in (features, actions, values)]
    found = block(0.0, *twice)
    assert len(found.points) == 5
    once = block(0.0, features, actions, values)
    assert (asked_of(found, features)[1] < asked_of(once, features)[1]).all()
    assert np.isfinite(asked_of(found, features)).all()
