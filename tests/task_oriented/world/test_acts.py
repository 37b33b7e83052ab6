import doctest

import pytest

from rlhf_dialog.task_oriented.world import acts
from rlhf_dialog.task_oriented.world.acts import Act, format_acts, parse_acts


def test_a_turn_in_one_line():
    turn = [Act("hello"), Act("request", "phone"), Act("inform", "tea", "green"), Act("inform", "", "dontcare")]
    assert format_acts(turn) == "hello() request(phone) inform(tea=green) inform(=dontcare)"


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
    assert parse_acts(format_acts(turn)) == turn


def test_words_are_not_acts():
    assert parse_acts("How about (maybe) ada ?") == []
    assert doctest.testmod(acts).failed == 0
