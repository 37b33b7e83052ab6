"""RelevanceReward: the margin by hand, its bounds, and what it depends on."""

import math

import pytest
import torch

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards import RelevanceReward
from rlhf_dialog.rewards.base import models_inside, needs_device
from rlhf_dialog.rewards.composite import model_paths
from tests.parts.relevance_models import BANK, save_letters


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_letters(tmp_path_factory.mktemp("relevance"))


@pytest.fixture(scope="module")
def reward(folder):
    return RelevanceReward(folder, floor=None)


OUTSIDE = [["z", "a b", "c"], *BANK]
INSIDE = [
    ["t", "q", *BANK[2]],
    *BANK[:2],
    *BANK[3:],
]  # the model reads three turns: the prompt is the third of the bank


@pytest.mark.parametrize("contexts", [OUTSIDE, INSIDE], ids=["other prompt", "prompt of the bank"])
def test_the_margin_by_hand_leaves_the_own_prompt_out_of_the_bank(reward, contexts):
    count = len(contexts)
    scores = reward.model.scores(contexts, ["d e"], torch.arange(count).unsqueeze(0))[:, 0].double()
    expected = [math.log(math.exp(s[0]) / (sum(map(math.exp, s)) / count)) for s in scores.tolist()]
    assert reward([Dialogue(contexts[0], "d e")]) == [pytest.approx(sum(expected) / 2, abs=1e-5)]


def test_it_is_floored_and_bounded(folder, reward):
    dialogues = [Dialogue(turns, reply) for turns in BANK for reply in ("a b", "q", "", "t s r", "c d")]
    free, floored = reward(dialogues), RelevanceReward(folder, floor=-1.25)(dialogues)
    assert min(free) < -1.25
    assert floored == [max(margin, -1.25) for margin in free]
    assert max(free) <= math.log(len(BANK) + 1)
    between = RelevanceReward(folder, floor=-1.25, ceiling=0.5)(dialogues)
    assert max(free) > 0.5
    assert between == [min(margin, 0.5) for margin in floored]


def test_a_score_depends_on_no_other_response(reward):
    dialogues = [Dialogue(["a b", "c"], "d e f g h"), Dialogue(["e"], "a"), Dialogue(BANK[0], "q r")]
    together = reward(dialogues)
    assert together == pytest.approx([reward([dialogue])[0] for dialogue in dialogues], abs=1e-5)
    assert reward(dialogues[::-1]) == pytest.approx(together[::-1], abs=1e-5)
    assert reward([]) == []
    # the prompt is everything before the response
    longer = Dialogue(["a", "b"]).with_reply("c").with_user_turn("d e").with_reply("f")
    assert reward([longer]) == pytest.approx(reward([Dialogue(["b", "c", "d e"], "f")]), abs=1e-5)


def test_a_smaller_bank_is_the_beginning_of_the_whole_one(folder):
    small = RelevanceReward(folder, floor=None, bank_size=2)
    scores = small.model.scores([["p"], *BANK[:2]], ["q"], torch.arange(3).unsqueeze(0))[:, 0]
    expected = (scores[:, 0] - scores.logsumexp(dim=-1) + math.log(3)).mean()
    assert small([Dialogue(["p"], "q")]) == [pytest.approx(expected.item(), abs=1e-5)]


def test_what_it_holds(folder, reward):
    assert {name: module for name, (_, module) in models_inside(reward).items()} == {"relevance model": reward.model}
    assert needs_device(reward)
    assert RelevanceReward(folder).floor == -3.0
    assert model_paths("RelevanceReward", {"model": folder}) == {"relevance model": folder}
    assert model_paths("RelevanceReward", {}) == {}
