"""What is estimated from what was measured: seconds of a step, and the tokens that fit."""

from dataclasses import replace

import pytest

from experiments.dailydialog.estimate import step_seconds, tokens_for
from experiments.dailydialog.jobs import Ended
from experiments.dailydialog.sizes import FULL, SHORT


def test_seconds_of_a_step_are_those_between_lines():
    lines = [
        (0.0, "reads"),
        (10.0, "step 4 of 20: loss 6.8"),
        (18.0, "step 8 of 20: loss 6.5, 2 s left"),
        (19.0, "saved"),
    ]
    assert step_seconds(Ended(0, 0.0, 30.0, lines)) == 2.0
    members = [(time + 100 * m, f"member {m} of 2, {line}") for m in (1, 2) for time, line in lines[1:3]]
    assert step_seconds(Ended(0, 0.0, 30.0, members)) == 2.0
    assert step_seconds(Ended(0, 0.0, 30.0, lines[:2])) == 0.0


@pytest.mark.parametrize(
    ("of_token", "tokens"),
    [
        (0.0122, 190_000),  # 2,400 / 0.0122 = 196,721
        (0.1, 40_000),  # at least
        (0.001, 200_000),  # at most
    ],
)
def test_tokens_are_what_the_minutes_allow(of_token, tokens):
    assert tokens_for(SHORT, of_token) == tokens
    assert tokens_for(replace(SHORT, minutes=None), of_token) == 200_000
    assert tokens_for(FULL, of_token) == 330_000
