from matplotlib.figure import Figure

from rlhf_dialog.evaluation.plot import plot

ROWS = [
    {"iteration": 1, "objective/score": 0.1, "reward/intent": 0.2, "reward/intent_weighted": 0.1, "objective/kl": 0.0},
    {"iteration": 2, "objective/score": 0.3, "reward/intent": None, "reward/intent_weighted": None, "eval/score": 0.4},
    {"iteration": 3, "objective/score": 0.5, "reward/intent": 0.6, "reward/intent_weighted": 0.3, "objective/kl": 0.2},
]


def drawn(monkeypatch, tmp_path, kl_target: float | None) -> list[dict[str, tuple[list, list]]]:
    """Of each panel its lines: label -> x and y."""
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kw: (figures.append(self), save(self, *args, **kw)))
    plot(ROWS, kl_target, "a run", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"
    return [
        {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines}
        for axis in figures[0].axes
    ]


def test_every_panel_has_its_points_and_gaps_are_left_out(monkeypatch, tmp_path):
    rewards, kl, speed, length = drawn(monkeypatch, tmp_path, 0.05)
    assert rewards == {
        "score": ([1, 2, 3], [0.1, 0.3, 0.5]),
        "intent": ([1, 3], [0.2, 0.6]),
        "score on validation": ([2], [0.4]),
    }
    assert kl == {"KL per token": ([1, 3], [0.0, 0.2]), "KL target": ([0, 1], [0.05, 0.05])}
    assert speed == length == {}


def test_a_run_without_a_target_has_no_line_for_it(monkeypatch, tmp_path):
    assert set(drawn(monkeypatch, tmp_path, None)[1]) == {"KL per token"}
