"""Code of others: where it raised, and what happens when it does not end."""

import json
import threading
import traceback

import pytest

from rlhf_dialog import user_code
from rlhf_dialog.user_code import (
    BackgroundCall,
    TimeLimit,
    all_stacks,
    frames_of,
    in_file_of,
    line_of,
    outside_libraries,
    within,
)


def raises() -> None:
    json.loads("{")


@pytest.fixture
def error():
    with pytest.raises(ValueError, match="Expecting") as caught:
        raises()
    return caught.value


def test_lines_of_libraries_are_left_out(error):
    """The deepest line is the JSON library's; the last one that is not is the call above."""
    assert frames_of(error)[-1].name == "raw_decode"
    assert [frame.name for frame in outside_libraries(frames_of(error))][-1] == "raises"
    ours = traceback.FrameSummary(user_code.__file__, 1, "within")
    assert outside_libraries([ours, traceback.FrameSummary("<frozen importlib._bootstrap>", 1, "x")]) == []


def test_the_file_of_a_class(error):
    assert in_file_of(json.JSONDecoder, frames_of(error))[-1].name == "raw_decode"
    assert in_file_of(int, frames_of(error)) == []


def test_a_line_is_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert line_of(traceback.FrameSummary(str(tmp_path / "a" / "b.py"), 7, "f")) == "a/b.py:7"
    assert line_of(traceback.FrameSummary("/elsewhere/b.py", 7, "f")) == "/elsewhere/b.py:7"


def test_work_that_does_not_end_says_where_it_is():
    end = threading.Event()
    with pytest.raises(TimeLimit) as caught:
        within(0.05, end.wait)
    assert "wait" in [frame.name for frame in caught.value.frames]
    assert "rlhf_dialog aside" in all_stacks()
    end.set()


def test_work_beside():
    assert within(60, lambda: 3) == 3
    work = BackgroundCall(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        work.result()
    assert work.is_done
