"""The grammar as a judge of replies: sentences written by hand, and everything that the grammar writes itself."""

import random
from itertools import pairwise

import pytest

from rlhf_dialog.data.made_up.dialogues import generate_dialogue, overheard
from rlhf_dialog.data.made_up.judge import attends, derives, is_careless

PRICE = "How much is the swimming pool ?"


@pytest.fixture(scope="module")
def dialogues():
    rng = random.Random(3)
    return [generate_dialogue(rng) for _ in range(150)]


def test_what_the_grammar_writes_is_derived_and_attends_to_the_turn_before(dialogues):
    for turns, _ in dialogues:
        for last_turn, reply in pairwise(turns):
            assert derives(reply), reply
            assert attends(last_turn, reply), (last_turn, reply)


def test_replies_from_other_places_do_not_attend(dialogues):
    turns = [turn for turns, _ in dialogues for turn in turns]
    rng = random.Random(0)
    assert sum(attends(rng.choice(turns), rng.choice(turns)) for _ in range(1000)) < 10


def test_careless_replies_are_known_and_attend_to_nothing(dialogues):
    rng = random.Random(0)
    heard = [overheard(dialogue, 1.0, rng)[0][0] for dialogue in dialogues]
    assert all(len(turns) == 2 for turns in heard)
    assert all(is_careless(reply) and derives(reply) and not attends(turn, reply) for turn, reply in heard)


@pytest.mark.parametrize(
    ("reply", "is_derived", "does_attend"),
    [
        ("The swimming pool is seven dollars a day .", True, True),
        ("The sauna is seven dollars a day .", True, False),  # another thing than was asked for
        ("It is down the stairs , and it opens at eight o'clock .", True, False),
        ("The swimming pool is seven dollars a .", False, False),
        ("The swimming pool is sevendollars a day .", False, False),
        ("", False, False),
    ],
)
def test_sentences_written_by_hand(reply, is_derived, does_attend):
    assert (derives(reply), attends(PRICE, reply)) == (is_derived, does_attend)


def test_names_change_sides_with_the_speaker():
    asked = "Do you often go to the cinema , Lucy ?"
    answers = ["No , I seldom go to the cinema , I watch musicals at home .", "Yes , Lucy , I go there every week ."]
    assert [attends(asked, answer) for answer in answers] == [True, False]
