import doctest

import pytest

from rlhf_dialog.task_oriented.world import acts
from rlhf_dialog.task_oriented.world.acts import Act, acts_of, text_of


def test_acts_are_values():
    assert Act("inform", "tea", "green") == Act("inform", "tea", "green")
    assert len({Act("bye"), Act("bye"), Act("ack")}) == 2


def test_a_turn_in_one_line():
    turn = [Act("hello"), Act("request", "phone"), Act("inform", "tea", "green"), Act("inform", "", "dontcare")]
    assert text_of(turn) == "hello() request(phone) inform(tea=green) inform(=dontcare)"


@pytest.mark.parametrize(
    "turn",
    [
        [Act("hello"), Act("request", "phone"), Act("inform", "tea", "green"), Act("inform", "", "dontcare")],
        [Act("inform", "phone", "(0) 1.2"), Act("inform", "name", "a=b (c)"), Act("bye")],
        [Act("inform", "name", "")],
        [],
    ],
)
def test_the_line_is_read_as_it_was_written(turn):
    assert acts_of(text_of(turn)) == turn


def test_words_are_not_acts():
    assert acts_of("How about (maybe) ada ?") == []
    assert doctest.testmod(acts).failed == 0
