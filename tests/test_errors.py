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


def test_an_error_names_where_what_and_the_remedy():
    error = UserError("is missing", where="run/config.yaml", remedy="train first")
    assert str(error) == "run/config.yaml: is missing; train first"
    assert (error.where, error.what, error.remedy) == ("run/config.yaml", "is missing", "train first")
    assert str(UserError("lr: found -1")) == "lr: found -1"


@pytest.mark.parametrize(
    ("error", "place", "text"),
    [
        (UserError("is missing", where="a", remedy="make it"), ("b",), "b: is missing; make it"),
        (UserError("it is missing"), ("b",), "b: it is missing"),
        (UserError("--agent: 'x' is missing; set --agent"), ("model", "--agent"), "model: 'x' is missing; set model"),
        (UserError("'x' is missing"), ("model", "--agent"), "'x' is missing"),
        (UserError("--agent: 'x' is missing"), ("", "--agent"), "'x' is missing"),
        (MissingSplit("no test"), ("data",), "data: no test"),
    ],
)
def test_an_error_at_another_place(error, place, text):
    moved = error.with_location(*place)
    assert (str(moved), type(moved)) == (text, type(error))
