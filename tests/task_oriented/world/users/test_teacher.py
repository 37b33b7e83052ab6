"""A person who talks and rewards."""

import pytest

from rlhf_dialog.errors import SignalExit
from rlhf_dialog.task_oriented.world.users.teacher import PersonTurn
from tests.parts.persons import typing

ASKED = "> Reward, -20 to 20 (Enter: none): "


def test_words_and_rewards_go_their_ways():
    person, shown = typing(["", "hello", "/reward 3", "//reward", "/end", "-2.5", ""])
    assert person.begin("Find tea.", "Hello .") == PersonTurn("hello")
    assert shown[:3] == ["Find tea.", "> System: Hello .", "> You: "]
    assert person.answer("Which tea ?") == PersonTurn("/reward", reward=3.0)
    assert person.answer("Which area ?") == PersonTurn(ends=True)
    assert [person.judge("the goal was reached"), person.judge("")] == [-2.5, None]
    assert "(the goal was reached)" in shown
    assert not person.left


def test_each_answer_is_rewarded_where_that_is_wanted():
    person, shown = typing(["hi", "1", "tea", "", "bye", "-1"], each_answer=True, rewards=(-1.0, 1.0))
    person.begin("", "")
    assert person.answer("What ?") == PersonTurn("tea", 1.0)
    assert person.answer("Who ?") == PersonTurn("bye", None)
    assert person.answer("Goodbye .", last=True) == PersonTurn("", -1.0, ends=True)
    assert shown[-2:] == ["> System: Goodbye .", "> Reward, -1 to 1 (Enter: none): "]


@pytest.mark.parametrize("wrong", ["21", "-20.5", "nan", "inf", "good", "1,5", "1_0"])
def test_what_is_not_a_reward_is_asked_for_again(wrong):
    person, shown = typing([wrong, "+7"])
    assert person.correct() == 7.0
    assert shown == [ASKED, f"({wrong!r} is not a reward; give a number from -20 to 20)", ASKED]


def test_words_with_a_slash():
    person, shown = typing(
        ["/end", "/reward 3", "/HELP", "/wuit", "/undo", "hi", "/undo", "/reward 4", "/undo", "6", "x"]
    )
    undone = []
    person.undo = lambda: undone.append(1)
    assert person.begin("", "") == PersonTurn("hi")
    assert undone == [1]
    assert shown.count("(the system has not answered yet)") == 2
    assert any("/quit" in line and "/undo" in line for line in shown)
    assert any("there is no word /wuit; did you mean '/quit'?" in line for line in shown)
    assert person.answer("What ?") == PersonTurn("x", 6.0)
    assert any("the last answer has no reward" in line for line in shown)


def test_a_word_in_the_place_of_a_reward():
    person, shown = typing(["/undo", "/help", "5"])
    assert person.correct() == 5.0
    assert "(a reward is asked for: a number, or Enter for none)" in shown


@pytest.mark.parametrize("end", ["/quit", "/exit", EOFError, KeyboardInterrupt, SignalExit])
def test_the_end_of_the_day(end):
    lines = iter(["hi", "/reward 2", end])
    person, _ = typing([])

    def ask(prompt):
        line = next(lines)
        if isinstance(line, str):
            return line
        raise line

    person.ask = ask
    person.begin("", "")
    assert person.answer("What ?") == PersonTurn("", 2.0)
    assert person.left
    assert person.answer("Are you there ?") == PersonTurn()  # nothing more is asked
    assert person.judge("") is None
