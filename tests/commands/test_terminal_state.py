"""What the terminal keeps of its person: the random id and the lines that were typed."""

import logging
import pwd
import re
import stat
import sys

import pytest

from rlhf_dialog.commands import terminal_state
from rlhf_dialog.commands.terminal_state import edit_lines, forget_lines, terminal_person


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "rlhf-dialog"


def test_the_person_is_a_random_id_that_is_kept(state, monkeypatch, tmp_path):
    person = terminal_person()
    assert re.fullmatch(r"[0-9a-f]{32}", person)
    assert terminal_person() == person
    assert [stat.S_IMODE(path.stat().st_mode) for path in (state / "person", state)] == [0o600, 0o700]
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in ("", "relative/path"):
        monkeypatch.setenv("XDG_STATE_HOME", given)
        assert terminal_person() == (tmp_path / ".local/state/rlhf-dialog/person").read_text().strip()


@pytest.mark.parametrize("obstacle", ["another text", "no state folder"])
def test_where_the_id_cannot_be_kept_it_is_new_each_time_with_a_warning(state, caplog, obstacle):
    if obstacle == "no state folder":
        state.parent.write_text("a file")
    else:
        state.mkdir(parents=True)
        (state / "person").write_text("me")
    with caplog.at_level(logging.WARNING):
        first, second = terminal_person(), terminal_person()
    assert first != second
    assert "cannot be kept" in caplog.text
    assert obstacle == "no state folder" or (state / "person").read_text() == "me"


def nobody(uid):
    raise KeyError(uid)


def test_a_person_without_a_home_folder_is_a_warning(monkeypatch, caplog):
    """As with `docker run --user 12345`."""
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert re.fullmatch(r"[0-9a-f]{32}", terminal_person())
    assert "no home folder" in caplog.text


def test_lines_that_were_typed_can_be_forgotten_and_a_pipe_is_no_terminal(monkeypatch):
    readline = pytest.importorskip("readline")
    assert not terminal_state.is_terminal()
    monkeypatch.setattr(sys, "stdin", None)
    assert not terminal_state.is_terminal()
    monkeypatch.setattr(terminal_state, "is_terminal", lambda: True)
    edit_lines()
    readline.add_history("a secret")
    forget_lines()
    assert readline.get_current_history_length() == 0
