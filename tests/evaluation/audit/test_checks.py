"""Parts and their variance, classifiers and their confidence."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_dialog.evaluation.audit import checks
from tests.parts.audits import talks


def test_the_shares_of_the_variance_by_hand():
    """Score 0, 1, 3, 4 = (0, 1, 0, 1) + (0, 0, 3, 3): variances 0.25 and 2.25, no covariance, 2.5 together."""
    parts = {"small": np.asarray([0.0, 1, 0, 1]), "large": np.asarray([0.0, 0, 3, 3])}
    shares = checks.variance_shares(np.asarray([0.0, 1, 3, 4]), parts)
    assert shares == {"small": pytest.approx(0.1), "large": pytest.approx(0.9)}


def test_a_part_is_flat_below_a_hundredth_of_the_scores_deviation():
    score = np.asarray([-1.0, 1, -1, 1])
    parts = {"all": score, "little": 0.011 * score, "nothing": 0.009 * score}
    assert checks.flat_parts(score, parts) == ["nothing"]


def confident(sure, acts):
    """A classifier that finds these acts, with these probabilities."""
    rows = [[p if i == act - 1 else (1 - p) / 3 for i in range(4)] for p, act in zip(sure, acts, strict=True)]
    return SimpleNamespace(name="intent", logits=lambda dialogues: torch.tensor(rows, dtype=torch.float64).log())


def test_the_calibration_by_hand():
    prompts = talks(4)
    for prompt, act in zip(prompts, (1, 2, 3, 4), strict=True):
        prompt.act = act
    found = checks.calibration(confident([0.95, 0.97, 0.55, 0.95], [1, 2, 3, 1]), prompts)
    assert (found["accuracy"], found["confidence"]) == (0.75, pytest.approx(0.855))
    # the bin from 0.9: three replies, mean 0.9567, right 2 of 3; the bin from 0.5: one, 0.55, right
    assert [one["replies"] for one in found["bins"]] == [1, 3]
    assert found["error"] == pytest.approx((1 * 0.45 + 3 * (2.87 / 3 - 2 / 3)) / 4)
