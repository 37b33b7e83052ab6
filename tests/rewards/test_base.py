"""What a reward says of the models inside of it, and who asks: placement, forecast, identity, scoring beside other work."""

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import build_reward
from rlhf_dialog.rewards.base import acts, models_inside, needs_device, reference_lists, walk
from tests.parts.judges import DEPTHS, DIALOGUES, Halved, Judge, Words, inside, summed, yaml_inside


@DEPTHS
def test_a_model_is_moved_to_the_device(depth):
    judge = Judge()
    reward = inside(depth, Halved(judge))
    assert reward.move_to("meta") is reward
    assert {p.device.type for p in judge.model.parameters()} == {"meta"}


@DEPTHS
def test_a_reward_with_a_model_waits_for_the_device(depth):
    assert needs_device(inside(depth, Halved(Judge())))
    assert not needs_device(inside(depth, Halved(Words())))


def test_every_reward_and_every_model_is_met_once():
    judge, other = Judge(), Judge()
    shared = Halved(judge)
    shared.frozen_models = lambda: {"shared": judge.model}
    reward = summed(judge, Words(), inside(1, shared), other)
    met = list(walk(reward))
    assert len(met) == len({id(one) for one in met}) == 7
    found = models_inside(reward)
    assert {name: holder for name, (holder, _) in found.items()} == {"judge": judge, "judge_2": other}


def test_a_reward_with_a_model_is_built_and_scored_like_any_other(judges):
    node = yaml_inside(2, {"id": "Judge", "weight": 2.0, "args": {"folder": "f", "bias": 1.0}})
    assert build_reward(node["id"], node["args"])(DIALOGUES) == [2.0 + 2.0 + 2 * (7 / 2 + 1.0), 2 * 1.0]


WHOLE = [
    Dialogue(["Hi ."], reference="Ho .", act=1),
    Dialogue(["Bye ."], reference="So long .", references=["So long .", "See you ."], act=4),
]
BARE = Dialogue(["Where ?"])


def test_references_and_acts_of_dialogues_that_have_them():
    assert reference_lists(WHOLE, "mine") == [["Ho ."], ["So long .", "See you ."]]
    assert acts(WHOLE, "mine") == [1, 4]
    assert reference_lists([], "mine") == acts([], "mine") == []


@pytest.mark.parametrize(
    ("ask", "what"),
    [(reference_lists, "a reference reply"), (acts, "the act of the reference")],
)
def test_dialogues_that_lack_it_are_counted(ask, what):
    with pytest.raises(UserError, match=rf"reward 'mine' needs {what} .* 2 of 3 dialogues .*first is number 1\)"):
        ask([WHOLE[0], BARE, BARE], "mine")


@pytest.mark.parametrize("act", [0, 5])
def test_an_act_that_dailydialog_does_not_have(act):
    with pytest.raises(UserError, match=rf"reward 'mine': the data has act {act}; .* 4 commissive"):
        acts([WHOLE[0], Dialogue(["Hi ."], act=act)], "mine")
