import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.training.supervised.data_halves import of_half

PAIRS = [Dialogue(["a"], meta={"dialogue": number}) for number in (0, 0, 1, 4, 5, 5)]


def test_the_halves_share_no_dialogue_and_leave_none_out():
    lines = []
    numbers = {
        half: [pair.meta["dialogue"] for pair in of_half(PAIRS, half, "d", lines.append)]
        for half in ("all", "even", "odd")
    }
    assert numbers == {"all": [0, 0, 1, 4, 5, 5], "even": [0, 0, 4], "odd": [1, 5, 5]}
    assert lines == [f"train: 3 of them are in the {half} dialogues" for half in ("even", "odd")]


def test_an_empty_half_is_the_users_error():
    with pytest.raises(UserError, match="half: no pair of turns of 'd' is in a dialogue at an odd place"):
        of_half(PAIRS[:2], "odd", "d", print)
