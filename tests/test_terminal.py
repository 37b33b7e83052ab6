"""Text of others is shown as text: it cannot move the cursor, set a title, turn the direction or look like another line."""

import io
import logging
import unicodedata

import pytest
from rich.table import Table
from rich.text import Text

from rlhf_dialog import terminal
from rlhf_dialog.terminal import Console, TimeLeft, each_logged, lasting, visible

TITLE, CLEAR, C1 = "\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x9b31m"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (TITLE, r"\x1b]0;owned\x07"),
        (CLEAR, r"\x1b[2J\x1b[H"),
        (C1, r"\x9b31m"),
        ("a\rb\x08\x00\x7f", r"a\rb\x08\x00\x7f"),
        ("\u202egpj.exe\u2066\u200f\u061c", r"\u202egpj.exe\u2066\u200f\u061c"),
        ("a\u2028b\u2029\ufeff", r"a\u2028b\u2029\ufeff"),
        ("name\udcff.txt", r"name\udcff.txt"),  # a file name that is not UTF-8
        ("caf\u00e9\t\u4f60\u597d \U0001f468\u200d\U0001f469 \u05e9\u05dc\u05d5\u05dd\n.", None),  # as it is
    ],
)
def test_what_is_made_visible(text, shown):
    assert visible(text) == (text if shown is None else shown)


def test_no_character_of_a_control_category_is_left_but_tab_and_newline():
    every = "".join(map(chr, range(0x3000)))
    left = {c for c in visible(every) if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")}
    assert left == {"\t", "\n"}
    directions = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not {c for c in visible(every) if unicodedata.bidirectional(c) in directions}


@pytest.mark.parametrize("terminal", [False, True])
def test_a_console_shows_text_and_keeps_its_own_colours(terminal):
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=60, color_system="standard" if terminal else None)
    table = Table(title=f"t {TITLE}")
    table.add_column("reply", style="bold")
    table.add_row(Text(f"{CLEAR}one {C1}"))  # measured before it is made visible, so its end may be cut off
    table.add_row(f"two {TITLE}")
    console.print(table)
    console.print(f"three {TITLE}", highlight=False)
    shown = file.getvalue()
    for escape in ("\x1b]", "\x1b[2J", "\x1b[H", "\x07", "\x9b"):
        assert escape not in shown
    assert shown.count(r"\x1b]0;owned\x07") == 3
    assert ("\x1b[1m" in shown) is terminal  # bold


class Clock:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(terminal.time, "monotonic", lambda: self.now)


def test_the_time_left_is_that_of_the_speed_since_the_first_share(monkeypatch):
    """A resumed run begins at 40 %: 10 % in 36 s leave 180 s for the other 50 %."""
    clock, left = Clock(monkeypatch), TimeLeft()
    clock.now += 500  # loading
    assert left.text(0.4) == ""
    clock.now += 36
    assert left.text(0.5) == "3 min left"
    clock.now += 9000
    assert left.text(1.0) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (719, "12 min"), (7140, "119 min"), (12000, "3 h 20 min")],
)
def test_how_long_something_lasts(seconds, text):
    assert lasting(seconds) == text


def test_a_log_has_a_line_a_minute(monkeypatch, caplog):
    clock, seen = Clock(monkeypatch), []
    with caplog.at_level(logging.INFO, logger="rlhf_dialog"):
        for item in each_logged(range(10), "replies", logging.getLogger("rlhf_dialog.test")):
            seen.append(item)
            clock.now += 25
    assert seen == [*range(10)]
    assert caplog.messages == [
        "replies: 3 of 10, 30 %, 3 min left",
        "replies: 6 of 10, 60 %, 2 min left",
        "replies: 9 of 10, 90 %, 25 s left",
    ]
