"""The desk's rules as a judge of replies: sentences written by hand, and what the rules write themselves."""

import random

import pytest

from rlhf_dialog.data.synthetic.exchanges import draw_exchange
from rlhf_dialog.data.synthetic.judge import attends, derives


@pytest.fixture(scope="module")
def exchanges():
    rng = random.Random(3)
    return [draw_exchange(rng) for _ in range(400)]


def test_what_the_desk_answers_is_derived_and_attends(exchanges):
    for one in exchanges:
        assert derives(one.reply), one
        assert attends(one.prompt, one.reply), one


def test_replies_to_others_seldom_attend(exchanges):
    rng = random.Random(0)
    pairs = [(rng.choice(exchanges).prompt, rng.choice(exchanges).reply) for _ in range(400)]
    assert (
        sum(attends(prompt, reply) for prompt, reply in pairs) < 40
    )  # a tenth of the lines is about nothing that it knows


def test_careless_replies_are_sentences_that_do_not_attend(exchanges):
    rng = random.Random(1)
    for one in exchanges:
        missed = one.with_careless_reply(rng)
        assert derives(missed.reply), missed
        assert not attends(one.prompt, missed.reply), missed


@pytest.mark.parametrize(
    ("prompt", "reply", "is_sentence", "does_attend"),
    [
        ("What time is breakfast?", "Breakfast is from seven to ten.", True, True),
        ("hi, what time is breakfast", "breakfast? it is from seven to ten, madam", True, True),
        ("What time is breakfast?", "Breakfast is in the dining room on the ground floor.", True, False),  # where it is
        ("What time is breakfast?", "Breakfast is from six to nine.", True, False),  # that is dinner
        ("What time is breakfast?", "Lunch is from twelve to two.", True, False),
        ("What time is breakfast?", "Breakfast is from seven to.", False, False),
        ("Please call me a taxi at nine.", "Of course, I will have a taxi here at nine o'clock.", True, True),
        ("Please call me a taxi at nine.", "Of course, I will have a taxi here at ten o'clock.", True, False),
        ("What time is breakfast?", "", False, False),
    ],
)
def test_sentences_written_by_hand(prompt, reply, is_sentence, does_attend):
    assert (derives(reply), attends(prompt, reply)) == (is_sentence, does_attend)
