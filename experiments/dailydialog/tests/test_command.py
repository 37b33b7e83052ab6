"""The command line: each mistake is one sentence and exit code 2, and a stop says which command goes on."""

import subprocess

import pytest

from experiments.dailydialog import command, stages
from experiments.dailydialog.command import DailyDialogOptions, Progress, main
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


def test_data_that_is_not_there(tmp_path, capsys, data):
    work = tmp_path / "work"
    code, text = said(capsys, "--data_path", tmp_path / "none", "--work", work)
    assert (code, "--data_path" in text, text.count("\n")) == (2, True, 1)
    (data / "test/dialogues_test.txt").unlink()
    code, text = said(capsys, "--data_path", data, "--work", work)
    assert (code, "has no test/dialogues_test.txt" in text) == (2, True)
    assert not work.exists()


def test_a_folder_that_cannot_be_made(tmp_path, capsys, data):
    (tmp_path / "file").write_text("")
    code, text = said(capsys, "--data_path", data, "--work", tmp_path / "file" / "work")
    assert (code, "--work" in text and "cannot be written" in text) == (2, True)


def test_a_checkout_is_refused_unless_it_ignores_the_folder(tmp_path, capsys, data, monkeypatch):
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    subprocess.run(["git", "init", "-q", str(checkout)], check=True)
    (checkout / ".gitignore").write_text("/runs/\n")
    code, text = said(capsys, "--data_path", data, "--work", checkout / "work")
    assert (code, "git checkout that would track it" in text) == (2, True)
    monkeypatch.setattr(command, "run_stages", lambda *_: None)
    assert said(capsys, "--data_path", data, "--work", checkout / "runs" / "work")[0] == 0


def test_too_little_room_on_the_disk(tmp_path, capsys, data, monkeypatch):
    monkeypatch.setitem(command.DISK, "short", 2**60)
    code, text = said(capsys, "--data_path", data, "--work", tmp_path / "work")
    assert (code, "GiB free" in text) == (2, True)


def test_a_full_run_needs_its_second_start(tmp_path, capsys, data, monkeypatch):
    monkeypatch.setitem(command.DISK, "full", 0)
    words = ("--data_path", data, "--work", tmp_path / "work", "--size", "full", "--fetched", tmp_path)
    code, text = said(capsys, *words)
    assert (code, "python -m experiments.smollm2 fetch smollm2" in text) == (2, True)


def test_a_stop_says_which_command_goes_on(tmp_path, capsys, data, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_stages", stopped)
    code, text = said(capsys, "--data_path", data, "--work", tmp_path / "work", "--until", "sft")
    assert code == 130
    assert f"--data_path {data} --work {tmp_path / 'work'} --size short --until sft" in text


def test_a_stage_alone_names_what_it_needs(tmp_path, capsys, data):
    code, text = said(capsys, "--data_path", data, "--work", tmp_path / "work", "--size", "tiny", "--only", "ppo")
    assert (code, "estimate" in text and "not done" in text) == (2, True)


def test_what_is_begun_again_with_a_stage():
    assert stages.after("table") == ["table"]
    assert stages.after("dpo") == ["dpo", "validation", "test", "table"]
    assert stages.after("estimate") == list(stages.NAMES)


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


def test_tiny_is_said_to_be_for_tests():
    assert "tests" in DailyDialogOptions.__dataclass_fields__["size"].metadata["meaning"]
