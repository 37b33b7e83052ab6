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


def test_of_several_references_the_nearest_counts():
    several = Dialogue(["Hi ."], "a b c d", "e", references=["e", "f g h", "i j k l m n"])
    assert LengthMatch()([several]) == [-0.25]  # 3 words for 4; the first reference alone would give -0.75
