import json

import pytest

from rlhf_dialog.commands import plot_run


@pytest.mark.slow
def test_the_plot_lies_in_the_run_folder_or_where_it_is_asked_for(tmp_path, capsys):
    row = {"iteration": 1, "objective/score": 0.5, "objective/kl": 0.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert plot_run.main(["--run", str(tmp_path)]) == 0
    assert plot_run.main(["--run", str(tmp_path), "--output", str(tmp_path / "other.png")]) == 0
    assert capsys.readouterr().out.splitlines() == [f"plot: {tmp_path}/{name}.png" for name in ("plot", "other")]
    assert (tmp_path / "plot.png").read_bytes() == (tmp_path / "other.png").read_bytes()


def test_the_line_of_the_target_comes_from_the_runs_configuration(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"iteration": 1}) + "\n")
    targets = []
    monkeypatch.setattr(
        "rlhf_dialog.evaluation.plot.plot", lambda rows, kl_target, title, output, evaluation: targets.append(kl_target)
    )
    assert plot_run.main(["--run", str(tmp_path)]) == 0
    (tmp_path / "config.yaml").write_text("kl_target: 0.07\n")
    assert plot_run.main(["--run", str(tmp_path)]) == 0
    (tmp_path / "config.yaml").write_text("kl_target: 0.07\nkl_rate: 0\n")
    assert plot_run.main(["--run", str(tmp_path)]) == 0
    assert targets == [None, 0.07, None]  # a fixed coefficient has no target
