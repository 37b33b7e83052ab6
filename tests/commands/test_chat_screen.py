"""What a chat shows of an answer."""

from itertools import pairwise

import pytest

from rlhf_dialog.commands.chat_screen import Screen
from rlhf_dialog.terminal import visible


def shown(pieces: list[str]) -> list[str]:
    """What a terminal gets, piece by piece, as the command writes it."""
    found: list[str] = []
    Screen(found.append, lambda text: found.append(visible(text))).answer(iter(pieces))
    return found


def test_a_terminal_gets_each_piece_once():
    assert shown(["He", "Hello", "Hello"]) == ["> Agent: ", "He", "llo", "", "\n"]


def test_a_pipe_gets_the_whole_answer_in_one_line():
    written: list[str] = []
    Screen(written.append).answer(iter(["He", "Hello"]))
    assert written == ["> Agent: Hello"]


def test_an_empty_answer_is_shown():
    assert "".join(shown([""])) == "> Agent: (an empty reply)\n"


def test_what_changes_after_all_is_shown_again():
    assert "".join(shown(["do n", "don't"])) == "> Agent: do n\n> Agent: don't\n"


STEERING = ["\x1b[2J", "\x1b]0;owned\x07", "\x9b2J", "a\rb", "\u202egnp.exe", "<script>alert(1)</script>"]


@pytest.mark.parametrize("text", STEERING)
def test_an_escape_that_is_split_over_tokens_cannot_steer_the_terminal(text):
    written = "".join(shown([text[:i] for i in range(1, len(text) + 1)]))
    assert written == f"> Agent: {text.encode('unicode_escape').decode()}\n"


def test_no_line_of_a_growing_answer_can_pass_for_a_prompt():
    text = "one\n> User: two\n> Agent: three"
    pieces = [text[:i] for i in range(1, len(text) + 1)]
    assert "".join(shown(pieces)) == "> Agent: one\n         > User: two\n         > Agent: three\n"
    assert all(late.startswith(early) for early, late in pairwise(pieces))
