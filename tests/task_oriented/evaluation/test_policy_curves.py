"""The plot of learning curves."""

from matplotlib.figure import Figure
from policy_cells import cell, few_cells, point

from rlhf_dialog.task_oriented.evaluation.policy_curves import plot_curves
from rlhf_dialog.task_oriented.evaluation.policy_rows import rows_of


def test_a_panel_for_each_error_rate_with_curves_and_lines(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    worse = [cell("random", 0, point(0, [-9.0]), error_rate=0.15), cell("good", 0, point(10, [1.0]), error_rate=0.15)]
    plot_curves(rows_of([*few_cells(), *worse]), "title", tmp_path / "a.png")
    axes = figures[0].axes
    assert [axis.get_title() for axis in axes] == ["0 % error", "15 % error", "", ""]
    reward = {line.get_label(): list(line.get_ydata()) for line in axes[2].get_lines()}
    assert reward == {"good": [0.0, 10.0], "bad": [-9.0, -8.0], "handcrafted": [8.0, 8.0], "random": [-5.0, -5.0]}
    band = axes[2].collections[0].get_paths()[0].vertices  # of `good` at 10 dialogues: both seeds have the mean 0
    assert band[:, 1].min() == 0.0
    assert axes[2].get_ylim()[0] < -9 < 10 < axes[2].get_ylim()[1]
    assert not axes[2].texts
    assert axes[3].get_ylim()[0] > -9
    assert [text.get_text() for text in axes[3].texts] == ["below: random: -9.00"]
    colors = [axis.get_lines()[0].get_color() for axis in axes]
    assert len(set(colors)) == 1


def test_the_file_is_a_png(tmp_path):
    plot_curves(rows_of(few_cells()), "title", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
