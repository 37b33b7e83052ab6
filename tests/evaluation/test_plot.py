import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlhf_dialog.evaluation.plot import plot, plot_success

ROWS = [
    {"iteration": 1, "objective/score": 0.1, "reward/intent": 0.2, "reward/intent_weighted": 0.1, "objective/kl": 0.0},
    {"iteration": 2, "objective/score": 0.3, "reward/intent": None, "reward/intent_weighted": None, "eval/score": 0.4},
    {"iteration": 3, "objective/score": 0.5, "reward/intent": 0.6, "reward/intent_weighted": 0.3, "objective/kl": 0.2},
]


def figure_of(monkeypatch, tmp_path, kl_target, evaluation=None, rows=ROWS) -> Figure:
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kw: (figures.append(self), save(self, *args, **kw)))
    plot(rows, kl_target, "a run", tmp_path / "plot.png", evaluation)
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"
    return figures[0]


def lines_of(axis) -> dict[str, tuple[list, list]]:
    """The lines of a panel: label -> x and y."""
    return {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines}


def test_every_panel_has_its_points_and_gaps_are_left_out(monkeypatch, tmp_path):
    rewards, kl, length = (lines_of(axis) for axis in figure_of(monkeypatch, tmp_path, 0.05).axes)
    assert rewards["score at the start"][1] == [0.1, 0.1]
    assert rewards["score on validation"] == ([2], [0.4])
    assert rewards["score, their sum"] == ([1, 2, 3], pytest.approx([0.1, 0.2, 0.3]))  # the mean of what was so far
    assert kl == {"KL a token": ([1, 3], [0.0, 0.2]), "target of the KL": ([0, 1], [0.05, 0.05])}
    assert length == {}


def test_the_bands_of_the_parts_add_up_to_the_score(monkeypatch, tmp_path):
    """Two parts of .3 and .2 above zero, one of -.1 below: the bands end at .5 and -.1."""
    parts = {"reward/a_weighted": 0.3, "reward/b_weighted": 0.2, "reward/c_weighted": -0.1}
    rows = [{"iteration": i, "objective/score": 0.4, **parts} for i in (1, 2)]
    axis = figure_of(monkeypatch, tmp_path, None, rows=rows).axes[0]
    ends = {band.get_label(): band.get_paths()[0].vertices[:, 1] for band in axis.collections}
    bands = {name: (round(float(some.min()), 6), round(float(some.max()), 6)) for name, some in ends.items()}
    assert bands == {"a": (0.0, 0.3), "b": (0.3, 0.5), "c": (-0.1, 0.0)}


def test_an_evaluation_shows_the_scores_of_the_systems_that_it_has(monkeypatch, tmp_path):
    def score(mean):
        return {"score": {"mean": mean, "low": mean - 0.1, "high": mean + 0.1}}

    found = {
        "before": score(0.2),
        "after": score(0.6),
        "baselines": {"true_replies": score(0.9), "always_inform": score(0)},
    }
    axis = figure_of(monkeypatch, tmp_path, None, found).axes[2]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["true replies", "after PPO", "before PPO"]
    assert [text.get_text() for text in axis.texts] == ["0.90", "0.60", "0.20"]


def row(number, **more):
    return {"iteration": number, "dialogues": 10 * number, "success": 0.1 * number, "reward": number - 5.0} | more


LANGUAGE_MODEL = {"dialogues": "episodes", "success": "environment/success", "reward": "environment/reward"}


@pytest.mark.parametrize("names", [{}, LANGUAGE_MODEL], ids=["policy", "language model"])
def test_success_is_drawn_against_dialogues_with_the_handcrafted_line(tmp_path, monkeypatch, names):
    drawn, lines = [], []
    plot, axhline = Axes.plot, Axes.axhline
    monkeypatch.setattr(Axes, "plot", lambda self, *a, **k: drawn.append((a, k["label"])) or plot(self, *a, **k))
    monkeypatch.setattr(Axes, "axhline", lambda self, y, **k: lines.append(y) or axhline(self, y, **k))
    known = {"eval/success": 0.7, "eval/reward": 3.0, "eval/handcrafted_success": 0.9, "eval/handcrafted_reward": 11.0}
    rows = [row(1), row(2, **known), row(3, success=None)]
    rows = [{names.get(name, name): value for name, value in one.items()} for one in rows]
    plot_success(rows, "a run", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert drawn[0] == (((10, 20), (0.1, 0.2)), "while learning")
    assert drawn[1] == (((20,), (0.7,)), "evaluation")
    assert lines == [0.9, 11.0]


@pytest.mark.slow
def test_a_matplotlibrc_of_the_working_directory_changes_no_picture(monkeypatch, tmp_path):
    """It has been read when matplotlib was imported; with `text.usetex` latex would be started."""
    plot(ROWS, 0.05, "a run", tmp_path / "before.png")
    for key, value in {"text.usetex": True, "figure.facecolor": "red", "font.size": 30.0}.items():
        monkeypatch.setitem(matplotlib.rcParams, key, value)
    plot(ROWS, 0.05, "a run", tmp_path / "after.png")
    assert (tmp_path / "after.png").read_bytes() == (tmp_path / "before.png").read_bytes()
    assert matplotlib.rcParams["font.size"] == 30.0  # of another program in this process
