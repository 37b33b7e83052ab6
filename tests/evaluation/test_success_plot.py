from matplotlib.axes import Axes

from rlhf_dialog.evaluation.success_plot import of_dialogues, plot_success


def row(number, **more):
    return {"iteration": number, "dialogues": 10 * number, "success": 0.1 * number, "reward": number - 5.0} | more


def test_success_is_drawn_against_dialogues_with_the_handcrafted_line(tmp_path, monkeypatch):
    drawn, lines = [], []
    plot, axhline = Axes.plot, Axes.axhline
    monkeypatch.setattr(Axes, "plot", lambda self, *a, **k: drawn.append((a, k["label"])) or plot(self, *a, **k))
    monkeypatch.setattr(Axes, "axhline", lambda self, y, **k: lines.append(y) or axhline(self, y, **k))
    known = {"eval/success": 0.7, "eval/reward": 3.0, "eval/handcrafted_success": 0.9, "eval/handcrafted_reward": 11.0}
    rows = [row(1), row(2, **known), row(3, success=None)]
    plot_success(rows, "a run", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert drawn[0] == (((10, 20), (0.1, 0.2)), "while learning")
    assert drawn[1] == (((20,), (0.7,)), "evaluation")
    assert lines == [0.9, 11.0]


def test_a_run_without_evaluations_is_drawn_too(tmp_path):
    plot_success([row(1)], "a run", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").is_file()


def test_the_rows_of_a_language_model_have_other_names():
    (found,) = of_dialogues(
        [{"episodes": 64, "environment/success": 0.5, "environment/reward": 2.0, "eval/success": 0.6}]
    )
    assert (found["dialogues"], found["success"], found["reward"], found["eval/success"]) == (64, 0.5, 2.0, 0.6)
