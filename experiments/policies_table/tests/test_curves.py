"""The plot of learning curves."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.policies_table.curves import COLORS, MOST, plot_curves, spread
from experiments.policies_table.rows import rows_of
from experiments.policies_table.tests.policy_cells import cell, few_cells, point


@pytest.fixture
def axes_of(monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))

    def drawn(cells):
        plot_curves(rows_of(cells), "title", "a.png")
        return figures[-1].axes

    return drawn


def test_a_panel_for_each_error_rate_with_curves_and_lines(axes_of):
    worse = [cell("random", 0, point(0, [-9.0]), error_rate=0.15), cell("good", 0, point(10, [1.0]), error_rate=0.15)]
    axes = axes_of([*few_cells(), *worse])
    assert [axis.get_title() for axis in axes] == ["0 % error", "15 % error"]
    curves = {curve.get_label(): curve for curve in axes[0].containers}
    assert {name: curve[0].get_ydata().tolist() for name, curve in curves.items()} == {
        "good": [0.5, 1.0],
        "bad": [0.0, 0.0],
    }
    bars = curves["good"][2][0].get_segments()  # (dialogues, low) to (dialogues, high)
    assert [bar[:, 0].tolist() for bar in bars] == [[10, 10], [20, 20]]
    assert bars[0][0][1] < 0.5 < bars[0][1][1]
    lines = {line.get_label(): line.get_ydata()[0] for line in axes[0].get_lines() if line.get_linestyle() != "-"}
    assert lines == {"handcrafted": 1.0, "random": 0.0}
    assert sorted(text.get_text() for text in axes[0].texts) == ["bad", "good", "handcrafted", "random"]
    assert [text.get_text() for text in axes[1].texts] == ["below: random: 0.00", "good"]


def test_at_most_six_curves_share_a_panel_and_no_two_look_alike(axes_of):
    names = [f"policy {i}" for i in range(11)]
    axes = axes_of([cell(name, 0, point(10, [1.0])) for name in names])
    assert [[curve.get_label() for curve in axis.containers] for axis in axes] == [names[:6], names[6:]]
    assert len(set(COLORS)) == MOST == len(COLORS)


def test_labels_of_one_height_are_apart_and_below_the_top():
    assert spread(np.array([1.0, 1.0, 3.0]), 0.5, 3.0).tolist() == [1.0, 1.5, 3.0]
    assert spread(np.array([2.9, 3.0, 9.0]), 0.5, 3.0).tolist() == [2.0, 2.5, 3.0]


def test_the_file_is_a_png(tmp_path):
    plot_curves(rows_of(few_cells()), "title", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
