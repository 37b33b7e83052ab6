"""What is read of a turn: titles, sections, and which of several titles is meant."""

import pytest

from rlhf_dialog.task_oriented.policies.multi_domain.lookup_requests import (
    choose_title,
    find_heading,
    find_title,
    wants_more,
)


@pytest.mark.parametrize(
    ("turn", "title"),
    [
        ("What is the Moon?", "Moon"),
        ("who was Ada Lovelace", "Ada Lovelace"),
        ("What's an aubergine , please ?", "aubergine"),
        ("Could you please tell me about chess?", "chess"),
        ("Tell me more about The Hague.", "The Hague"),
        ("look up 'Zürich'", "Zürich"),
        ("What is C++?", "C++"),
        ("What is it called ?", None),
        ("Who are you?", None),
        ("What is your name?", None),
        ("What else is there ?", None),
        ("I would like chinese food .", None),
        ("What is ?", None),
        ("What is ...", None),
        ("", None),
    ],
)
def test_the_title_that_a_turn_asks_for(turn, title):
    assert find_title(turn) == title


@pytest.mark.parametrize(
    ("turn", "heading", "of_the_page"),
    [
        ("Tell me more about its history.", "history", True),
        ("What were her early years?", "early years", True),
        ("What about the history?", "history", False),
        ("more on Rules please", "rules", False),
        ("I like its taste", "", False),
        ("What about its?", "its", False),
        ("Tell me about ''", "", False),
    ],
)
def test_the_section_that_a_turn_asks_for(turn, heading, of_the_page):
    assert find_heading(turn) == (heading, of_the_page)


@pytest.mark.parametrize(
    ("turn", "more"),
    [("Can you say more ?", True), ("more about it, please", True), ("No more chess", False), ("", False)],
)
def test_asking_for_more(turn, more):
    assert wants_more(turn) is more


PLANET, METAL, GOD = "Mercury (planet)", "Mercury (element)", "Mercury (god)"


@pytest.mark.parametrize(
    ("turn", "meant"),
    [
        ("mercury (GOD)", GOD),
        ("The planet, I think.", PLANET),
        ("the second one", METAL),
        ("the last", GOD),
        ("third", GOD),
        ("the first element", METAL),  # a name says more than a place
        ("Mercury", None),
        ("yes", None),
        ("not the planet", None),
        ("What is the planet Venus?", None),
        ("planet or element", None),
        ("", None),
    ],
)
def test_which_title_is_meant(turn, meant):
    assert choose_title(turn, [PLANET, METAL, GOD]) == meant


@pytest.mark.parametrize(
    ("turn", "meant"), [("Yes, please", "Tea"), ("tea", "Tea"), ("no", None), ("the second", None), ("not sure", None)]
)
def test_a_single_title_is_confirmed(turn, meant):
    assert choose_title(turn, ["Tea"]) == meant
