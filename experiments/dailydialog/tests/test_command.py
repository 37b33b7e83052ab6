"""The command line: each mistake is one sentence and exit code 2, and a stop says which command goes on."""

import subprocess

import pytest

from experiments.dailydialog import command
from experiments.dailydialog.command import main
from experiments.dailydialog.jobs import Job, run_jobs
from rlhf_dialog.errors import UserError


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


def test_jobs_run_side_by_side_and_one_that_fails_is_named(tmp_path):
    def job(name, program):
        return Job(name, ["-c", program], tmp_path / f"{name}.txt", tmp_path / name)

    ended = run_jobs([job("a", "print('step 1 of 2')"), job("b", "pass")], at_once=2)
    assert {name: (one.code, [line for _, line in one.lines]) for name, one in ended.items()} == {
        "a": (0, ["step 1 of 2"]),
        "b": (0, []),
    }
    with pytest.raises(UserError, match=r"c: ended with exit code 1; .*no memory"):
        run_jobs([job("c", "raise SystemExit('no memory')")])
