"""The plot of a simulated month."""

import matplotlib.image
import pytest
from matplotlib.figure import Figure

from experiments.month.liked_plot import plot_liked

ROWS = [
    {"night": 0, "liked": 0.2, "promoted": None},
    {"night": 1, "liked": 0.3, "promoted": True},
    {"night": 2, "liked": 0.3, "promoted": False},
    {"night": 3, "liked": 0.4, "promoted": True},
]


def test_every_night_is_drawn_and_promoted_and_refused_ones_differ(tmp_path, monkeypatch):
    drawn = {}
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: drawn.update(axis=self.axes[0]) or save(self, *a, **k))
    plot_liked(ROWS, "a month", tmp_path / "month.png")
    axis = drawn["axis"]
    assert axis.lines[0].get_xydata().tolist() == [[0, 20], [1, 30], [2, 30], [3, 40]]
    points = {one.get_label(): one.get_offsets().tolist() for one in axis.collections}
    assert points == {"promoted": [[1, 30], [3, 40]], "refused": [[2, 30]], "nothing changed": [[0, 20]]}
    assert matplotlib.image.imread(tmp_path / "month.png").shape[:2] == (495, 880)


@pytest.mark.parametrize("count", [1, 2])
def test_a_month_that_has_just_begun(tmp_path, count):
    plot_liked(ROWS[:count], "a month", tmp_path / "month.png")
    assert (tmp_path / "month.png").stat().st_size > 1000
