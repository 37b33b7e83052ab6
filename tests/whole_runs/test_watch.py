"""`watch` in TRL's GRPOTrainer: one process that is killed and goes on, and two ranks."""

import pytest

from rlhf_dialog.commands import report
from rlhf_dialog.evaluation.run_page.verdict import verdict
from rlhf_dialog.runs.metrics_file import read_metrics
from rlhf_dialog.runs.run_reader import read_run
from tests.parts.processes import run_python

TRAIN = ("-m", "tests.parts.watched_grpo")


@pytest.mark.slow
def test_a_reward_that_pays_length_is_seen_in_trls_trainer(tmp_path, capsys):
    assert run_python(*TRAIN, tmp_path, "24", "11").returncode == -9
    assert len(read_metrics(tmp_path / "watched" / "metrics.jsonl")) == 11
    ended = run_python(*TRAIN, tmp_path, "24", "0", "resume")  # from the checkpoint after 8 steps
    assert ended.returncode == 0, ended.stderr
    run = read_run(tmp_path / "watched")
    assert [(row["iteration"], row["step"], row["episodes"]) for row in run.rows] == [
        (i + 1, i, 16 * (i + 1)) for i in range(24)
    ]
    lengths = [row["response/length"] for row in run.rows]
    assert sum(lengths[-6:]) > 1.5 * sum(lengths[:6])
    assert "replies become longer" in [one.sign for one in verdict(run.rows, run.config)[1] if one.state == "sick"]
    assert {row["iteration"] for row in run.newest} == {24}
    assert report.main([str(tmp_path / "watched")]) == 0
    assert "look at this: replies become longer" in capsys.readouterr().out


@pytest.mark.multiprocess
def test_two_ranks_of_trls_trainer_make_one_report(tmp_path):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    ended = run_python(*torchrun, *TRAIN, tmp_path, "3")
    assert ended.returncode == 0, ended.stderr
    ranks = [read_metrics(tmp_path / "watched" / name) for name in ("metrics.jsonl", "metrics.1.jsonl")]
    assert [[row["step"] for row in rows] for rows in ranks] == [[0, 1, 2]] * 2
    run = read_run(tmp_path / "watched")
    assert [row["episodes"] for row in run.rows] == [32, 64, 96]
    first, second = (rows[0]["objective/score"] for rows in ranks)
    assert first != second
    assert run.rows[0]["objective/score"] == pytest.approx((first + second) / 2)
