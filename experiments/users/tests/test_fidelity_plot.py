"""The plot of a comparison of users."""

import math

from experiments.users.fidelity_plot import plot_differences


def test_a_png_is_written_also_for_a_difference_without_spread(tmp_path):
    classifier = {"turns": {"mean": 0.9}}
    users = {
        "agenda": {"measures": {"turns": {"d": math.inf}, "words": {"d": -0.3}}, "classifier": classifier},
        "corpus": {"measures": {"turns": {"d": 0.0}}, "classifier": classifier},
    }
    plot_differences(users, tmp_path / "users.png")
    assert (tmp_path / "users.png").read_bytes().startswith(b"\x89PNG")
