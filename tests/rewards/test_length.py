"""LengthMatch by hand."""

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.length import LengthMatch


@pytest.mark.parametrize(
    ("response", "reference", "expected"),
    [("a b c", "d e f", 0.0), ("a", "b c d e", -0.75), ("a b c d", "e", -0.75), ("", "a b", -1.0), ("", "", 0.0)],
)
def test_length_match(response, reference, expected):
    reward = LengthMatch()
    assert reward([Dialogue(["Hi ."], response, reference)]) == [expected]
    assert reward.name == "length_match"
    assert reward.needs == ("reference",)
