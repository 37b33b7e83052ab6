"""A person who plays the user of an environment."""

import io
import json

import pytest

from rlhf_dialog.commands import chat
from rlhf_dialog.commands.chat_screen import Screen
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.commands.chat_environment import build_environment, converse_about_a_goal
from tests.parts.small_domain import DATA


class Waiter:
    """An agent that answers with the venue of the data base's line."""

    version, problem = "0001", None

    def __init__(self, venue=None):
        self.venue, self.asked, self.ended = venue, [], False

    def say(self, text):
        self.asked.append(text)
        shown = dict(pair.split("=", 1) for pair in text.split(": ", 1)[1].split(", "))
        name = self.venue or shown["name"]
        yield "How"
        known = {"phone number": shown.get("phone"), "opening hours": shown.get("hours")}
        yield " ".join([f"How about {name} ?", *(f"Its {slot} is {x} ." for slot, x in known.items() if x)])

    def end(self):
        self.ended = True


def talked(tmp_path, lines, waiter):
    """What was shown in a dialogue with a person who types these lines, and whether it succeeded."""
    path = tmp_path / "tea.json"
    path.write_text(json.dumps(DATA))
    shown, typed = [], iter(lines)
    screen = Screen(shown.append)
    environment = build_environment(str(path), lambda prompt: next(typed), screen)
    return converse_about_a_goal(environment, waiter, screen, seed=0), shown


def test_a_goal_that_is_reached(tmp_path):
    waiter = Waiter()
    goal = talked(tmp_path, ["quit", "quit"], Waiter())[1][0]
    wanted = goal.partition(": ")[2].partition(". Find")[0]
    success, shown = talked(
        tmp_path, ["", f"I want {wanted}", "phone number and opening hours ?", "thanks, bye"], waiter
    )
    assert shown[0] == goal
    assert goal.startswith("You are looking for a cafe: ")
    assert (success, shown[-1], waiter.ended) == (True, "The dialogue has succeeded (turns: 2).", True)
    assert "[db]" in waiter.asked[0]
    assert not any("[db]" in line for line in shown)


def test_a_goal_that_is_missed(tmp_path):
    success, shown = talked(tmp_path, ["hello", "bye"], Waiter("zoe"))
    assert (success, shown[-1]) == (False, "The dialogue has failed (turns: 1).")
    assert shown[-2] == "(zoe is not in the data base)"


def test_words_with_a_slash_are_not_said(tmp_path):
    waiter = Waiter()
    _, shown = talked(tmp_path, ["/help", "//help", "/QUIT"], waiter)
    assert "(there is only the word /quit here; // begins a message with a slash)" in shown
    assert [text.split("\n")[0] for text in waiter.asked] == ["/help"]


def test_a_domain_that_is_not_there():
    with pytest.raises(UserError, match="did you mean 'restaurant'"):
        build_environment("resturant", input, Screen(print))


def test_the_command(agent_folder, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nbye\n"))
    assert chat.main(["--agent", str(agent_folder), "--environment", "restaurant", "--seed", "3"]) == 0
    shown = capsys.readouterr().out
    assert "You are looking for a restaurant: " in shown
    assert "The dialogue has failed (turns: " in shown
