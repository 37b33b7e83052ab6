"""What the terminal keeps of its person: the random id and the lines that were typed."""

import logging
import os
import pwd
import re
import stat
import sys

import pytest

from rlhf_dialog.commands import terminal_state
from rlhf_dialog.commands.terminal_state import edit_lines, forget_lines, state_folder, terminal_person
from rlhf_dialog.errors import UserError


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


@pytest.mark.parametrize("obstacle", ["another text", "a folder", "no state folder"])
def test_where_the_id_cannot_be_kept_it_is_new_each_time_with_a_warning(state, caplog, obstacle):
    if obstacle == "no state folder":
        state.parent.write_text("a file")
    elif obstacle == "a folder":
        (state / "person").mkdir(parents=True)
    else:
        state.mkdir(parents=True)
        (state / "person").write_text("me")
    with caplog.at_level(logging.WARNING):
        first, second = terminal_person(), terminal_person()
    assert first != second
    assert "cannot be kept" in caplog.text
    if obstacle == "another text":
        assert (state / "person").read_text() == "me"


def nobody(uid):
    raise KeyError(uid)


def test_a_person_without_a_home_folder_is_a_warning(monkeypatch, caplog):
    """As with `docker run --user 12345`."""
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert re.fullmatch(r"[0-9a-f]{32}", terminal_person())
    assert "no home folder" in caplog.text
    forget_lines()


def test_lines_that_were_typed_can_be_forgotten(state, monkeypatch):
    """With those of the file that earlier versions wrote."""
    readline = pytest.importorskip("readline")
    monkeypatch.setattr(terminal_state, "is_terminal", lambda: True)
    edit_lines()
    state.mkdir(parents=True)
    (state / "chat_history").write_text("a secret")
    readline.add_history("another")
    forget_lines()
    forget_lines()
    assert (readline.get_current_history_length(), list(state.iterdir())) == (0, [])
    (state / "chat_history").mkdir()
    with pytest.raises(UserError, match=r"chat_history"):
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


def test_a_pipe_and_a_closed_standard_input_are_no_terminals(monkeypatch):
    assert not terminal_state.is_terminal()
    monkeypatch.setattr(sys, "stdin", None)
    assert not terminal_state.is_terminal()
