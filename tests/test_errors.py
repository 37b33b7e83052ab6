"""The errors that end a run, and the nearest name in their messages."""

import re
import signal
import sys
from pathlib import Path

import pytest

from rlhf_dialog.commands.command_line import INTERRUPTED
from rlhf_dialog.errors import INTERNAL_ERROR, MissingSplit, RunStopped, UserError, check_installed, nearest


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("lrr", ["gamma", "lr", "seed"], "; did you mean 'lr'?"),
        ("Politenes", iter(["Meteor", "Politeness"]), "; did you mean 'Politeness'?"),
        ("xyz", ["Politeness"], ""),
        ("4", [3, 40], "; did you mean '40'?"),
        ("a", [], ""),
    ],
)
def test_the_nearest_name(name, known, said):
    assert nearest(name, known) == said


def test_each_error_has_its_exit_code():
    assert (UserError.exit_code, MissingSplit("x").exit_code, RunStopped.exit_code) == (2, 2, 3)
    assert issubclass(MissingSplit, UserError)
    assert not issubclass(RunStopped, UserError)


def test_a_package_that_is_installed(monkeypatch, tmp_path):
    check_installed("pytest", "k")
    monkeypatch.setitem(sys.modules, "made_up", object())
    check_installed("made_up", "k")


def test_a_package_that_is_not_installed(monkeypatch, tmp_path):
    (tmp_path / "made_up_tracker").mkdir()  # a folder of that name, as wandb makes one
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "blocked", None)
    for package, name in (("made_up_tracker", "made-up-tracker"), ("blocked", "blocked"), ("not_there", "not-there")):
        with pytest.raises(UserError, match=rf"use_it: the package {name} is not installed; .*pip install {name}"):
            check_installed(package, "use_it")


def test_the_exit_codes_of_the_document_are_those_of_the_code():
    text = (Path(__file__).parents[1] / "docs/RUNS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \| (.+?) \|", text[: text.index("## Is it learning?")], re.MULTILINE)
    codes = {int(code): what for numbers, what in rows for code in numbers.split(",")}
    assert set(codes) == {
        0,
        UserError.exit_code,
        RunStopped.exit_code,
        INTERNAL_ERROR,
        INTERRUPTED,
        128 + signal.SIGTERM,
    }
