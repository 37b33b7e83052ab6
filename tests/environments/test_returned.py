"""What an environment may return."""

import doctest
from fractions import Fraction

import numpy as np
import pytest

from rlhf_dialog.environments import returned
from rlhf_dialog.environments.returned import is_reward, is_text, is_truth, says_success


@pytest.mark.parametrize("value", [True, False, 0, 1, np.bool_(True), np.int8(0)])
def test_truths(value):
    assert is_truth(value)


@pytest.mark.parametrize("value", [0.0, 1.0, 2, -1, "yes", None, np.array([True]), float("nan")])
def test_what_is_no_truth(value):
    assert not is_truth(value)


@pytest.mark.parametrize("value", [0, -1e6, 1e6, 10**6, Fraction(1, 3), np.float32(2.5), np.int64(-3)])
def test_rewards(value):
    assert is_reward(value)


@pytest.mark.parametrize("value", [1e6 + 1, float("nan"), float("-inf"), "1", None, 1j, np.zeros(1)])
def test_what_is_no_reward(value):
    assert not is_reward(value)


def test_success_is_a_truth_or_left_out():
    assert all(says_success(info) for info in ({}, {"success": True}, {"success": np.False_}, {"reason": "no"}))
    odd = ["no", "", float("nan"), 1, 0, 1.0, None, [], np.array(True), np.int64(1)]
    assert not any(says_success({"success": value}) for value in odd)


def test_half_characters_are_no_text():
    assert is_text("")
    assert not any(map(is_text, ["\ud800", "a\udfffb", "\ude00\ud83d", None, b"a", 7]))
    assert doctest.testmod(returned).failed == 0
    assert doctest.testmod(returned).attempted == 1
