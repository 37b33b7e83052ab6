"""Errors: what is wrong, where, what to do, and the line of the user's code."""

import json
import re
import signal
import sys
import threading
import traceback
from pathlib import Path

import pytest

from rlhf_dialog import user_code
from rlhf_dialog.commands.command_line import INTERRUPTED
from rlhf_dialog.errors import INTERNAL_ERROR, MissingSplit, RunStopped, UserError, check_installed, nearest
from rlhf_dialog.user_code import (
    BackgroundCall,
    TimeLimit,
    all_stacks,
    find_user_line,
    format_line,
    outside_libraries,
    run_with_timeout,
)


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


def test_a_package_that_is_not_installed(monkeypatch, tmp_path):
    check_installed("pytest", "k")
    monkeypatch.setitem(sys.modules, "made_up", object())
    check_installed("made_up", "k")
    (tmp_path / "made_up_tracker").mkdir()  # a folder of that name, as wandb makes one
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "blocked", None)
    for package, name in (("made_up_tracker", "made-up-tracker"), ("blocked", "blocked"), ("not_there", "not-there")):
        with pytest.raises(UserError, match=rf"use_it: .*pip install {name}"):
            check_installed(package, "use_it")


def test_the_exit_codes_of_the_document_are_those_of_the_code():
    text = (Path(__file__).parents[1] / "docs/RUNS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \| (.+?) \|", text[: text.index("## Is it learning?")], re.MULTILINE)
    codes = {int(code): what for numbers, what in rows for code in numbers.split(",")}
    own = {UserError.exit_code, RunStopped.exit_code, INTERNAL_ERROR, INTERRUPTED}
    assert set(codes) == {0, 128 + signal.SIGTERM} | own


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


def raises() -> None:
    json.loads("{")


def test_the_users_line_is_told_and_lines_of_libraries_are_left_out():
    """The deepest line is the JSON library's; the last one that is not is the call above."""
    with pytest.raises(ValueError, match="Expecting") as caught:
        raises()
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].name == "raw_decode"
    assert [frame.name for frame in outside_libraries(frames)][-1] == "raises"
    assert find_user_line(object, frames).endswith(f"test_errors.py:{raises.__code__.co_firstlineno + 1}")
    ours = traceback.FrameSummary(user_code.__file__, 1, "run_with_timeout")
    hidden = [ours, traceback.FrameSummary("<frozen importlib._bootstrap>", 1, "x")]
    assert (outside_libraries(hidden), find_user_line(object, hidden)) == ([], "")
    assert find_user_line(BackgroundCall, hidden).endswith("user_code.py:1")  # the file of the class
    own, deeper = (traceback.FrameSummary(str(file), 3, "f") for file in (__file__, Path(__file__).parent / "b.py"))
    assert find_user_line(Owned, [own, deeper]).endswith("test_errors.py:3")
    assert find_user_line(object, [own, deeper]).endswith("b.py:3")


class Owned:
    pass


def test_a_line_is_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert format_line(traceback.FrameSummary(str(tmp_path / "a" / "b.py"), 7, "f")) == "a/b.py:7"
    assert format_line(traceback.FrameSummary("/elsewhere/b.py", 7, "f")) == "/elsewhere/b.py:7"


def test_work_beside_and_work_that_does_not_end():
    assert run_with_timeout(60, lambda: 3) == 3
    work = BackgroundCall(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        work.result()
    end = threading.Event()
    with pytest.raises(TimeLimit) as caught:
        run_with_timeout(0.05, end.wait)
    assert "wait" in [frame.name for frame in caught.value.frames]  # where it is
    assert "rlhf_dialog aside" in all_stacks()
    end.set()
