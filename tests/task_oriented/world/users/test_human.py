"""Persons in the place of a simulated user, and those who teach."""

import pytest

from rlhf_dialog.errors import SignalExit
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.goal_oriented import GoalOriented
from rlhf_dialog.task_oriented.world.goals import Goal
from rlhf_dialog.task_oriented.world.success import Evaluator
from rlhf_dialog.task_oriented.world.tracker import FocusTracker
from rlhf_dialog.task_oriented.world.users.human import HumanUser, describe_goal, why_failed
from rlhf_dialog.task_oriented.world.users.teacher import PersonTurn
from rlhf_dialog.task_oriented.world.words import system_words
from tests.parts.persons import typing
from tests.parts.small_domain import small_domain

TEA = small_domain()
GOAL = {"constraints": {"tea": "green", "area": "north"}, "requests": ["phone"]}


def person(*lines):
    """A person who types these lines, then closes the terminal; and what is shown to the person."""
    typed, shown = iter(lines), []
    return HumanUser(TEA, lambda: next(typed, None), shown.append), shown


def test_a_dialogue_with_a_person():
    user, shown = person("hi, green tea in the north please", "whats the phone number?", "Thanks, goodbye!")
    environment = GoalOriented(user, FocusTracker(TEA), Evaluator(TEA), system_words(TEA).read)
    text, _ = environment.reset(seed=0, options={"goal": GOAL})
    assert shown == [
        "You are looking for a cafe: tea green, area north. Find out: name, phone number. Say goodbye when you have it."
    ]
    assert text == "hi, green tea in the north please\n[db] 2 match: name=ada, tea=green, area=north"
    heard = environment.step("How about Ada ?")[0]
    assert heard == "whats the phone number?\n[db] 2 match: name=ada, phone=11, tea=green, area=north"
    text, reward, terminated, _, info = environment.step("How about Ada ? Its phone number is 11 .")
    assert (text, reward, terminated, info["success"]) == ("Thanks, goodbye!", 19.0, True, True)


def test_a_closed_terminal_is_a_goodbye_and_a_goal_is_shown_in_words():
    user, shown = person("green")
    goal = Goal({"area": "dontcare", "tea": "green"}, {"name": None}, wanted_name="ada")
    assert user.begin(goal, None) == [Act("inform", "tea", "green")]
    assert user.answer([Act("hello")]) == [Act("bye")]
    assert user.words == "Goodbye ."
    assert "cafe: tea green, area of any kind, the name ada. Find out: name." in shown[0]
    assert "cafe: any one. Find" in describe_goal(TEA, Goal({}))


MISSING = "what was not said, or not rightly: the phone number of ada"


@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        (["Pardon ?", "I am sorry , I found nothing ."], "no cafe was offered"),
        (["How about zoe ?"], "zoe is not in the data base"),
        (["How about ada ?", "How about cid ?"], "cid does not fit: area south, not north"),
        (["How about ada ? Its phone number is 22 ."], MISSING),
        (["How about ada ? Its phone number is 22 . Its phone number is 11 ."], MISSING),
        (["How about ada ? Its phone number is 11 ."], "the dialogue did not end with a goodbye"),
    ],
)
def test_a_person_is_shown_what_was_missing(replies, reason):
    user, _ = person(*["green tea in the north"] * (len(replies) + 1))
    words = system_words(TEA).read
    environment = GoalOriented(user, FocusTracker(TEA), Evaluator(TEA), words, max_turns=len(replies))
    environment.reset(seed=0, options={"goal": GOAL})
    info = [environment.step(reply) for reply in replies][-1][4]
    assert info["success"] is False
    assert why_failed(TEA, info).startswith(reason)


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


@pytest.mark.parametrize("wrong", ["21", "-20.5", "nan", "good", "1,5", "1_0", "/end"])
def test_what_is_not_a_reward_is_asked_for_again(wrong):
    person, shown = typing([wrong, "+20", "-20"])
    assert person.judge("") == 20.0
    assert (shown[0], shown[2], len(shown)) == ("> Reward, -20 to 20 (Enter: none): ", shown[0], 3)
    assert person.judge("") == -20.0


def test_words_with_a_slash():
    person, shown = typing(["/end", "/reward 3", "/HELP", "/wuit", "hi", "/reward 4", "/reward 6", "x"])
    assert person.begin("", "") == PersonTurn("hi")
    assert shown.count("(the system has not answered yet)") == 2
    assert sum("/quit" in line and "/reward" in line for line in shown) == 2  # for /help, and for an unknown word
    assert person.answer("What ?") == PersonTurn("x", 6.0)


@pytest.mark.parametrize("end", ["/quit", "/exit", EOFError, KeyboardInterrupt, SignalExit])
def test_the_end_of_the_day(end):
    lines, (person, _) = iter(["hi", "/reward 2", end]), typing([])

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
