"""What rewards ask of every dialogue: references and acts."""

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.needs import acts, reference_lists, references

WHOLE = [
    Dialogue(["Hi ."], reference="Ho .", act=1),
    Dialogue(["Bye ."], reference="So long .", references=["So long .", "See you ."], act=4),
]
BARE = Dialogue(["Where ?"])


def test_references_and_acts_of_dialogues_that_have_them():
    assert references(WHOLE, "mine") == ["Ho .", "So long ."]
    assert reference_lists(WHOLE, "mine") == [["Ho ."], ["So long .", "See you ."]]
    assert acts(WHOLE, "mine") == [1, 4]
    assert references([], "mine") == reference_lists([], "mine") == acts([], "mine") == []


@pytest.mark.parametrize(
    ("ask", "what"),
    [(references, "a reference reply"), (reference_lists, "a reference reply"), (acts, "the act of the reference")],
)
def test_dialogues_that_lack_it_are_counted(ask, what):
    with pytest.raises(UserError, match=rf"reward 'mine' needs {what} .* 2 of 3 dialogues .*first is number 1\)"):
        ask([WHOLE[0], BARE, BARE], "mine")


@pytest.mark.parametrize("act", [0, 5])
def test_an_act_that_dailydialog_does_not_have(act):
    with pytest.raises(UserError, match=rf"reward 'mine': the data has act {act}; .* 4 commissive"):
        acts([WHOLE[0], Dialogue(["Hi ."], act=act)], "mine")
