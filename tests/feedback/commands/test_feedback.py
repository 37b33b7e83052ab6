"""The command `feedback`: its list of subcommands, and both ways to start it."""

import sys

import pytest

from rlhf_dialog.feedback.commands import feedback
from tests.parts.processes import run_python


@pytest.fixture(autouse=True)
def _program(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["rlhf-dialog feedback"])


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_alone_it_lists_its_subcommands(words, capsys):
    assert feedback.main(words) == 0
    shown = capsys.readouterr().out
    assert "usage: rlhf-dialog feedback SUBCOMMAND" in shown
    listed = [line.split()[0] for line in shown.splitlines() if line.startswith("  ")]
    assert listed == list(feedback.SUBCOMMANDS)


@pytest.mark.parametrize("name", feedback.SUBCOMMANDS)
def test_the_help_of_a_subcommand(name, capsys):
    with pytest.raises(SystemExit) as end:
        feedback.main([name, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: rlhf-dialog feedback {name} " in shown
    assert "--run" in shown


def test_an_unknown_subcommand(capsys):
    assert feedback.main(["rolback", "--run", "x"]) == 2
    assert capsys.readouterr().err == "error: there is no subcommand 'rolback' of feedback; did you mean 'rollback'?\n"


@pytest.mark.slow
def test_as_a_module(tmp_path):
    ran = run_python("-m", "rlhf_dialog.feedback", cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "usage: python -m rlhf_dialog.feedback SUBCOMMAND" in ran.stdout
    ran = run_python("-m", "rlhf_dialog.feedback", "status", "--run", "nowhere", cwd=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: nowhere: is not the folder of a bot")
