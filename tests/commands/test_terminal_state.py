"""What the terminal keeps of its person: the random id and the lines that were typed."""

import logging
import os
import pty
import pwd
import re
import select
import stat
import sys

import pytest

from rlhf_dialog.commands import terminal_state
from rlhf_dialog.commands.terminal_state import forget_lines, line_editing, state_folder, terminal_person
from rlhf_dialog.errors import UserError
from tests.parts.processes import HANGING, environment, start_python


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "rlhf-dialog"


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_person_is_a_random_id_that_is_kept(state):
    person = terminal_person()
    assert re.fullmatch(r"[0-9a-f]{32}", person)
    assert terminal_person() == person
    assert (mode(state / "person"), mode(state)) == (0o600, 0o700)
    assert [path.name for path in state.iterdir()] == ["person"]


@pytest.mark.parametrize("given", ["", "relative/path"])
def test_the_state_is_in_the_home_folder_unless_a_whole_path_is_given(monkeypatch, tmp_path, given):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", given)
    assert state_folder() == tmp_path / ".local" / "state" / "rlhf-dialog"


def test_a_file_that_holds_something_else_is_left_alone(state, caplog):
    state.mkdir(parents=True)
    (state / "person").write_text("me")
    with caplog.at_level(logging.WARNING):
        first, second = terminal_person(), terminal_person()
    assert first != second
    assert "remove it" in caplog.text
    assert (state / "person").read_text() == "me"


def test_a_state_folder_that_cannot_be_made_is_a_warning(state, caplog):
    state.parent.write_text("a file")
    assert re.fullmatch(r"[0-9a-f]{32}", terminal_person())
    assert "cannot be kept" in caplog.text


def nobody(uid):
    raise KeyError(uid)


def test_a_person_without_a_home_folder_is_a_warning(monkeypatch, caplog):
    """As with `docker run --user 12345`."""
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert re.fullmatch(r"[0-9a-f]{32}", terminal_person())
    assert "your id cannot be kept: there is no home folder; set HOME or XDG_STATE_HOME" in caplog.text
    monkeypatch.setattr(terminal_state, "is_terminal", lambda: True)
    with line_editing():
        pass
    forget_lines()


def test_a_folder_in_the_place_of_the_file_is_a_warning(state, caplog):
    (state / "person").mkdir(parents=True)
    assert re.fullmatch(r"[0-9a-f]{32}", terminal_person())
    assert "cannot be kept" in caplog.text


def test_lines_that_were_typed_can_be_forgotten(state, monkeypatch):
    readline = pytest.importorskip("readline")
    monkeypatch.setattr(terminal_state, "is_terminal", lambda: True)
    with line_editing():
        readline.add_history("a secret")
        forget_lines()
        forget_lines()
        assert not (state / "chat_history").exists()
    assert "a secret" not in (state / "chat_history").read_text()


def test_lines_that_cannot_be_forgotten_are_an_error(state):
    (state / "chat_history").mkdir(parents=True)
    with pytest.raises(UserError, match=r"cannot be removed: .*chat_history"):
        forget_lines()


def test_two_terminals_that_begin_together_are_one_person(state, monkeypatch):
    """The second one finds the file that the first one has made meanwhile."""
    state.mkdir(parents=True)
    link = os.link

    def late(source, target):
        monkeypatch.setattr(os, "link", link)
        (state / "person").write_text("a" * 32)
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    assert terminal_person() == "a" * 32
    assert [path.name for path in state.iterdir()] == ["person"]


def test_a_pipe_has_no_line_editing(state):
    with line_editing():
        assert not terminal_state.is_terminal()
    assert not state.exists()


def test_a_closed_standard_input_is_not_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert not terminal_state.is_terminal()


LINES = (
    "from rlhf_dialog.commands.terminal_state import line_editing\nwith line_editing():\n    print('got', input('? '))"
)


def typed(keys: bytes, until: bytes, *words, env) -> bytes:
    """What `python *words` shows on a terminal of its own where somebody types `keys` after the first prompt."""
    ours, theirs = pty.openpty()
    with start_python(*words, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        seen = b""
        while select.select([ours], [], [], HANGING)[0]:
            try:
                new = os.read(ours, 4096)
            except OSError:  # Linux's end of a terminal
                break
            seen += new
            if keys and until in seen:
                os.write(ours, keys)
                keys = b""
        process.wait(HANGING)
    os.close(ours)
    return seen


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="terminals of POSIX")
def test_lines_are_edited_and_kept(state):
    env = environment(TERM="dumb")
    assert b"got hallo" in typed(b"hello\x02\x02\x02\x02\x04a\n", b"? ", "-c", LINES, env=env)  # 4 left, delete, a
    assert mode(state / "chat_history") == 0o600
    assert b"got hallo" in typed(b"\x10\n", b"? ", "-c", LINES, env=env)  # up
    assert mode(state / "chat_history") == 0o600
