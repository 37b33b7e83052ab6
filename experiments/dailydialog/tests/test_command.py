"""The command line: each mistake is one sentence and exit code 2; processes of the stages."""

import subprocess

import pytest

from experiments.dailydialog import command
from experiments.dailydialog.calls import Job, run_jobs
from experiments.dailydialog.command import main
from experiments.dailydialog.work import Work
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
    monkeypatch.setattr(command, "STAGES", ())
    assert said(capsys, "--data_path", data, "--work", checkout / "runs" / "work")[0] == 0


def test_a_folder_keeps_its_size_and_its_data(tmp_path, data):
    (tmp_path / "work").mkdir()
    assert Work(data, tmp_path / "work", "short", None).plan.size == "short"
    with pytest.raises(UserError, match=r"another size \(short, now tiny\)"):
        assert Work(data, tmp_path / "work", "tiny", None).plan
    (data / "train/dialogues_train.txt").write_text("No . __eou__ Yes . __eou__\n")
    with pytest.raises(UserError, match="another data"):
        assert Work(data, tmp_path / "work", "short", None).plan


def test_jobs_run_side_by_side_and_one_that_fails_is_named(tmp_path):
    def job(name, program):
        return Job(name, ["-c", program], tmp_path / f"{name}.txt", tmp_path / name)

    some = [job("a", f"print('done'); open({str(tmp_path / 'a')!r}, 'w')"), job("b", "print('step 1')")]
    run_jobs(some, side_by_side=True)
    run_jobs(some)  # a has its output
    assert [one.log.read_text() for one in some] == ["done\n", "step 1\nstep 1\n"]
    with pytest.raises(UserError, match=r"c: ended with exit code 1; .*no memory"):
        run_jobs([job("c", "raise SystemExit('no memory')")])
