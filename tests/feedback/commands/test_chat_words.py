"""The words of a chat that begin with a slash, and how a growing answer is shown."""

import pytest

from rlhf_dialog.commands.chat import converse
from rlhf_dialog.commands.chat_screen import Screen
from rlhf_dialog.feedback.commands.chat_words import WORDS, run_word
from rlhf_dialog.feedback.page.batched_generation import Answering
from rlhf_dialog.feedback.page.chat_session import ChatSession
from tests.parts.bots import new_version, rows

RATINGS = "SELECT kind, value, text FROM feedback"


@pytest.fixture
def chat(bot):
    """Type lines to the bot; returns what is written."""
    with Answering(bot, seed=0) as answering:
        store = bot.store()

        def typed(*lines: str) -> list[str]:
            left, written = [*lines, "quit"], []
            begin = lambda: ChatSession(store, answering, "somebody", "terminal")  # noqa: E731
            converse(begin, lambda prompt: left.pop(0), Screen(written.append))
            return written[1:]

        yield typed
        store.close()


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("/good", ("thumb", 1.0, None)),
        ("/good short and kind", ("thumb", 1.0, "short and kind")),
        ("/BAD  too long ", ("thumb", -1.0, "too long")),
        ("/good\tshort", ("thumb", 1.0, "short")),
        ("/score 4", ("score", 4.0, None)),
        ("/edit Good <EOU> morning .", ("edit", None, "Good morning .")),
    ],
)
def test_a_word_is_feedback_on_disk(bot, chat, line, row):
    written = chat("Hello", line)
    assert rows(bot, RATINGS) == [row]
    assert written[1].startswith("(stored: ")


def test_again_and_choose(bot, chat):
    written = chat("Hello", "/again", "/choose 1", "And ?")
    assert written[0].startswith("> Agent: ")
    assert written[1].startswith("> Agent, answer 2: ")
    assert "/choose 1 to /choose 2" in written[2]
    assert written[3] == "(stored: the dialogue goes on with answer 1)"
    first, second = (number for (number,) in rows(bot, "SELECT id FROM turns WHERE position = 1 ORDER BY id"))
    assert rows(bot, "SELECT kind, turn, other FROM feedback") == [("choice", first, second)]


REFUSED = {
    "/score": "/score takes a number from 1 to 5",
    "/score four": "/score takes a number from 1 to 5",
    "/score 6": "a score is 1, 2, 3, 4 or 5, not 6",
    "/score 0": "a score is 1, 2, 3, 4 or 5, not 0",
    "/score 4.5": "/score takes a number from 1 to 5",
    "/score " + "9" * 5000: "/score takes a number from 1 to 5",
    "/score ²": "/score takes a number from 1 to 5",
    "/choose": "/choose takes the number of an answer",
    "/choose 2": "there is only one answer; ask for another one first",
    "/edit": "/edit takes the text that the answer should be",
    "/forget": "/forget me removes all your dialogues and ratings",
    "/goood": "there is no word /goood; did you mean '/good'?",
    "/": "there is no word /; /help lists them",
}


def test_a_word_that_cannot_be_done_says_why_and_the_chat_goes_on(bot, chat):
    written = chat("Hello", *REFUSED, "And ?")
    for line, words in zip(written[1:-1], REFUSED.values(), strict=True):
        assert words in line
    assert written[-1].startswith("> Agent: ")
    assert rows(bot) == []


def test_help_and_why(chat):
    text, _, why = chat("/help", "Hello", "/why")
    assert all(f"/{word}" in text for word in WORDS)
    assert why.startswith("(Version 0001 answered, drawing its words at temperature 1.")


def test_forget_me(bot, chat):
    written = chat("Hello", "/good", "/forget me", "/Forget  me YES", "/good")
    assert "cannot be undone; /forget me yes does it" in written[2]
    assert written.pop(3) == "(removed: 4 rows, which is all that was stored of you; a new dialogue begins)"
    assert written[3] == "(there is no answer yet; say something first)"
    assert rows(bot, "SELECT * FROM dialogues") == rows(bot) == []


def test_forget_me_also_removes_the_lines_that_the_terminal_keeps(bot):
    store, written = bot.store(), []
    with Answering(bot) as answering:
        talk = ChatSession(store, answering, "somebody", "terminal")
        run_word(talk, "/forget me yes", Screen(written.append, forget=lambda: written.append("lines")))
        run_word(talk, "/forget you", Screen(written.append, forget=lambda: written.append("lines")))
    store.close()
    assert [line == "lines" for line in written] == [False, True, False]


def test_a_reset_says_that_another_version_answers(bot):
    with Answering(bot) as answering:
        store, written = bot.store(), []
        lines = iter(["Hello", "And ?", "reset", "Hello", "quit"])

        def read(prompt):
            if "And" in (line := next(lines)):
                new_version(bot)
            return line

        converse(lambda: ChatSession(store, answering, "somebody", "terminal"), read, Screen(written.append))
        store.close()
    assert "(version 0002 answers now)" in written
    assert [v for (v,) in rows(bot, "SELECT version FROM turns WHERE speaker = 'agent'")] == ["0001", "0001", "0002"]
