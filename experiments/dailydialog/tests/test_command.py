"""The command line: each mistake is one sentence and exit code 2, and a stop says which command goes on."""

import subprocess

import pytest

from experiments.dailydialog import command, stages
from experiments.dailydialog.command import Progress, main
from rlhf_dialog.terminal import Console


@pytest.fixture
def data(tmp_path):
    for split in ("train", "validation", "test"):
        (tmp_path / "data" / split).mkdir(parents=True)
        (tmp_path / "data" / split / f"dialogues_{split}.txt").write_text("Is it far ? __eou__ Two streets . __eou__\n")
    return tmp_path / "data"


def said(capsys, *words):
    code = main([str(word) for word in words])
    return code, capsys.readouterr().err


def test_a_checkout_is_refused_unless_it_ignores_the_folder(tmp_path, capsys, data, monkeypatch):
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    subprocess.run(["git", "init", "-q", str(checkout)], check=True)
    (checkout / ".gitignore").write_text("/runs/\n")
    code, text = said(capsys, "--data_path", data, "--work", checkout / "work")
    assert (code, "git checkout that would track it" in text) == (2, True)
    monkeypatch.setattr(command, "run_stages", lambda *_: None)
    assert said(capsys, "--data_path", data, "--work", checkout / "runs" / "work")[0] == 0


def test_the_time_left_is_that_of_the_estimates_and_of_a_slower_stage(monkeypatch):
    progress = Progress(Console(quiet=True))
    clock = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: clock[0])
    progress.name, progress.number, progress.began = "judge_bag", stages.NAMES.index("judge_bag") + 1, 0.0
    progress.minutes = {"judge_bag": 10.0, "act_judge": 30.0}
    clock[0] = 300.0
    assert progress.left(0.5) == ", about 35 min left"  # as fast as was estimated
    clock[0] = 600.0
    assert progress.left(0.5) == ", about 40 min left"  # half as fast
    assert progress.left(0.05) == ", about 40 min left"  # too early to know: 9.5 + 30
