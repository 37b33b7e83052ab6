"""KTO and DPO by hand, KTO's baseline and weights."""

import math

import pytest
from torch import tensor

from rlhf_dialog.feedback.learning import losses
from rlhf_dialog.feedback.learning.losses import balance_weights, kl_baseline


def test_by_hand():
    """A log-ratio of 3 above a baseline of 2, beta 0.5: 1 - sigmoid(0.5), and twice 1 - sigmoid(-0.5); then one below it."""
    ratios, baseline = tensor([3.0, 3.0, 1.0], requires_grad=True), kl_baseline(tensor([1.0, 3.0]))
    found = losses.kto_losses(ratios, tensor([True, False, True]), baseline, 0.5, 1.0, 2.0)
    assert found.tolist() == pytest.approx([1 / (1 + math.exp(x)) * w for x, w in ((0.5, 1), (-0.5, 2), (-0.5, 1))])
    found.sum().backward()  # what is liked becomes likelier
    assert (ratios.grad < 0).tolist() == [True, False, True]
    assert losses.dpo_losses(tensor([1.0]), tensor([-1.0]), 0.5).tolist() == pytest.approx([math.log(1 + math.exp(-1))])


def test_the_baseline_is_at_least_zero_and_takes_no_gradient():
    ratios = tensor([-3.0, 1.0], requires_grad=True)
    assert kl_baseline(ratios).item() == 0
    above = kl_baseline(ratios + 5)
    assert above.item() == 4
    assert not above.requires_grad


def test_weights_that_balance():
    free = (None, None)
    assert balance_weights(30, 10, *free) == pytest.approx((40 / 60, 40 / 20))
    assert balance_weights(10, 0, *free) == (1.0, 1.0)
    assert balance_weights(1, 99, *free) == pytest.approx((4.0, 100 / 198))
    assert balance_weights(30, 10, 1.0, None) == pytest.approx((1.0, 3.0))
    assert balance_weights(30, 10, None, 1.0) == pytest.approx((10 / 30, 1.0))
    assert balance_weights(30, 10, 2.0, 3.0) == (2.0, 3.0)
