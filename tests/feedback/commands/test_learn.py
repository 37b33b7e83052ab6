"""`feedback learn` from the command line: the report, a dry run, exit codes, the progress bar."""

import re

import pytest

from rlhf_dialog.feedback.commands import feedback
from rlhf_dialog.feedback.commands import learn as feedback_learn
from tests.parts.taught_bots import new_bot, set_keys, talk_to


@pytest.fixture
def bot(tmp_path):
    bot = new_bot(tmp_path)
    talk_to(bot, 40)
    return bot


def test_it_learns_and_says_what_it_did(bot, capsys):
    assert feedback.main(["learn", "--run", str(bot.folder), "--dry_run"]) == 0
    assert "dry run: nothing was changed" in capsys.readouterr().out
    assert bot.champion() == "0001"
    assert feedback.main(["learn", "--run", str(bot.folder)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^promoted: 0002 is the champion", out, re.MULTILINE), out
    assert bot.champion() == "0002"


def test_a_mistake_is_exit_code_2_with_one_message(bot, capsys, tmp_path):
    set_keys(bot, stepps=3)
    assert feedback.main(["learn", "--run", str(bot.folder)]) == 2
    assert "stepps: unknown key; did you mean 'steps'" in capsys.readouterr().err
    assert feedback.main(["learn", "--run", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.count("error:") == 1


def test_the_bar_is_shown_on_a_terminal_and_ends_with_the_last_step(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with feedback_learn.Steps() as steps:
        assert not steps.bar.live.is_started
        steps(1, 2)
        assert steps.bar.live.is_started
        assert (steps.bar.tasks[0].completed, steps.bar.tasks[0].total) == (1, 2)
        steps(2, 2)
        assert not steps.bar.live.is_started
