import json
import os

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


def test_a_run_without_metrics_is_exit_code_2(tmp_path, capsys):
    assert plot_run.main(["--run", str(tmp_path)]) == 2
    assert "metrics.jsonl: has no metrics to plot; train first" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_damaged_metrics_are_exit_code_2_and_not_half_a_plot(tmp_path, capsys):
    lines = [json.dumps({"iteration": i}).encode() for i in range(1, 11)]
    lines[6] = b"\xff\xfe"
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert plot_run.main(["--run", str(tmp_path)]) == 2
    assert "metrics.jsonl: line 7 is not a line of metrics; correct or remove that line" in capsys.readouterr().err
    assert not (tmp_path / "plot.png").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
def test_a_plot_does_not_replace_a_pipe(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"iteration": 1}) + "\n")
    os.mkfifo(tmp_path / "pipe.png")
    assert plot_run.main(["--run", str(tmp_path), "--output", str(tmp_path / "pipe.png")]) == 2
    assert "pipe.png' is not a regular file" in capsys.readouterr().err
    assert plot_run.main(["--run", str(tmp_path), "--output", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err
