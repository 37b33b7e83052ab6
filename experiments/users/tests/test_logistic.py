"""Logistic regression on sparse features, against torch's optimiser on the same loss with dense features."""

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from rlhf_dialog.task_oriented.evaluation.logistic import Features, fit


def random_problem(seed=0, count=60, size=12):
    rng = np.random.default_rng(seed)
    texts = [sorted(rng.choice(size, rng.integers(0, 6), replace=False).tolist()) for _ in range(count)]
    dense = np.concatenate([rng.normal(size=(count, 2)), np.ones((count, 1))], axis=1)
    labels = rng.random(count) < 0.25 + 0.3 * np.array([0 in text for text in texts])
    matrix = np.zeros((count, size))
    for row, text in enumerate(texts):
        matrix[row, text] = 1.0
    return Features.of(texts, size, dense), np.concatenate([matrix, dense], axis=1), labels


def test_products_are_those_of_the_dense_matrix():
    features, matrix, labels = random_problem()
    weights = np.random.default_rng(1).normal(size=matrix.shape[1])
    np.testing.assert_allclose(features.times(weights), matrix @ weights)
    np.testing.assert_allclose(features.back(labels.astype(float)), matrix.T @ labels)


def test_the_gradient_of_the_balanced_loss_is_zero():
    features, matrix, labels = random_problem()
    weights = torch.tensor(fit(features, labels, penalty=0.5), requires_grad=True)
    y = torch.tensor(labels, dtype=torch.float64)
    weigh = torch.where(y > 0, 0.5 / y.mean(), 0.5 / (1 - y.mean()))
    loss = binary_cross_entropy_with_logits(torch.tensor(matrix) @ weights, y, weight=weigh, reduction="sum")
    (loss + 0.25 * weights[:-1].square().sum()).backward()
    assert weights.grad.abs().max() < 1e-4
    assert weights.detach().abs().max() > 0.3


def test_texts_without_a_difference_get_no_weight():
    texts, dense = [[0], [1], [0], [1]], np.ones((4, 1))
    weights = fit(Features.of(texts, 2, dense), np.array([True, True, False, False]))
    assert np.abs(weights).max() < 1e-6
