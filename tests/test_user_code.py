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
    extract_frames,
    format_line,
    frames_in_class_file,
    outside_libraries,
    run_with_timeout,
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
    assert extract_frames(error)[-1].name == "raw_decode"
    assert [frame.name for frame in outside_libraries(extract_frames(error))][-1] == "raises"
    ours = traceback.FrameSummary(user_code.__file__, 1, "run_with_timeout")
    assert outside_libraries([ours, traceback.FrameSummary("<frozen importlib._bootstrap>", 1, "x")]) == []


def test_the_file_of_a_class(error):
    assert frames_in_class_file(json.JSONDecoder, extract_frames(error))[-1].name == "raw_decode"
    assert frames_in_class_file(int, extract_frames(error)) == []


def test_a_line_is_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert format_line(traceback.FrameSummary(str(tmp_path / "a" / "b.py"), 7, "f")) == "a/b.py:7"
    assert format_line(traceback.FrameSummary("/elsewhere/b.py", 7, "f")) == "/elsewhere/b.py:7"


def test_work_that_does_not_end_says_where_it_is():
    end = threading.Event()
    with pytest.raises(TimeLimit) as caught:
        run_with_timeout(0.05, end.wait)
    assert "wait" in [frame.name for frame in caught.value.frames]
    assert "rlhf_dialog aside" in all_stacks()
    end.set()


def test_work_beside():
    assert run_with_timeout(60, lambda: 3) == 3
    work = BackgroundCall(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        work.result()
    assert work.is_done
