"""The n of the best of n that an agent is worth, by hand."""

import math

import pytest

from experiments.frontier import best_of_n_kl, equal_n, n_with_kl, plot_frontier, worth

START = [{"n": 1, "kl": 0.0, "score": 1.0}, {"n": 2, "kl": 0.19, "score": 1.5}, {"n": 8, "kl": 1.2, "score": 2.5}]


@pytest.mark.parametrize(
    ("value", "n"), [(0.9, 0.0), (1.0, 1.0), (1.25, math.sqrt(2)), (1.5, 2.0), (2.0, 4.0), (2.5, 8.0), (2.6, math.inf)]
)
def test_between_two_points_the_curve_is_straight_in_the_logarithm(value, n):
    assert equal_n(START, "score", value) == pytest.approx(n)


@pytest.mark.parametrize(
    ("score", "words"), [(2.0, "the best of 4.0"), (0.5, "less than one reply"), (3.0, "more than the best of 8")]
)
def test_one_sentence_for_each_measure(score, words):
    curves = {"before": START, "after": [{"n": 1, "kl": math.log(4) - 0.75, "score": score}]}
    assert worth(curves) == [f"by score the agent is worth {words} of its start's, at the KL of the best of 4.0"]


def test_the_figure_is_a_png(tmp_path):
    plot_frontier({"before": START, "after": [{"n": 1, "kl": 0.6, "score": 2.0}]}, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_kl_of_the_best_of_n():
    """log 2 - 1/2, log 4 - 3/4; and back."""
    assert best_of_n_kl(1) == 0
    assert [best_of_n_kl(n) for n in (2, 4)] == pytest.approx([0.693147 - 0.5, 1.386294 - 0.75], abs=1e-6)
    assert [n_with_kl(kl) for kl in (0.193147, 0.636294)] == pytest.approx([2, 4], abs=1e-4)
    assert n_with_kl(0) == n_with_kl(-0.1) == pytest.approx(1)
