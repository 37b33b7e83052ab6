"""The F1 of acts against precision and recall, and by hand."""

import random

import pytest

from rlhf_dialog.metrics.acts import act_counts, macro_f1
from tests.parts.slow_metrics import slow_macro_f1


def test_macro_f1_agrees_with_precision_and_recall():
    rng = random.Random(5)
    for size in (1, 2, 6, 50):
        classes, acts = rng.choices(range(4), k=size), rng.choices(range(1, 5), k=size)
        assert float(macro_f1(act_counts(classes, acts).sum(axis=0))) == pytest.approx(slow_macro_f1(classes, acts))


def test_always_one_act_has_a_low_f1():
    """Half the acts are inform: accuracy 0.5, F1 of inform 2/3, of the three others 0."""
    acts = [1, 1, 1, 2, 3, 4]
    assert float(macro_f1(act_counts([0] * 6, acts).sum(axis=0))) == pytest.approx(2 / 3 / 4)
