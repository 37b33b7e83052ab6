"""Rewards of a formula each: length, copies, METEOR, NLPReward, and none."""

import logging

import pytest

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import CopyPrice, NoReward, score_dialogues
from rlhf_dialog.rewards.intent import Intent
from rlhf_dialog.rewards.length import LengthMatch
from rlhf_dialog.rewards.meteor import Meteor
from rlhf_dialog.rewards.nlp_reward import NLPReward
from tests.parts.classifiers import letters


def test_nlp_reward_passes_the_score_of_intent_on(pair_folder):
    dialogues = [Dialogue([letters(5, i)], letters(4, 100 + i), act=1 + i % 4) for i in range(4)]
    reward = NLPReward(pair_folder, meteor_coef=0, intent_score="probability")
    assert reward(dialogues) == pytest.approx(
        [0.5 * x for x in Intent(pair_folder, intent_score="probability")(dialogues)]
    )


def test_nlp_reward_is_the_weighted_sum(pair_folder):
    dialogues = [Dialogue([letters(5, i)], letters(4, 100 + i), letters(4, 100 + i), act=1 + i % 4) for i in range(8)]
    intents = Intent(pair_folder)(dialogues)
    assert 0 < sum(intents) < 8
    # response = reference, 4 words in one chunk: METEOR 1 - 0.5 / 4^3
    reward = NLPReward(pair_folder, intent_coef=0.3, meteor_coef="6e-1", meteor_wordnet="off")
    expected = [0.3 * value + 0.6 * (1 - 0.5 / 64) for value in intents]
    assert reward(dialogues) == pytest.approx(expected)
    assert set(reward.needs) == {"reference", "act"}
    assert list(score_dialogues(reward, dialogues).parts) == ["intent", "meteor_exact_stem"]
    paths = [NLPReward.model_paths({"intent_model": "x"} | coef) for coef in ({}, {"intent_coef": 0})]
    assert paths == [{"act classifier": "x"}, {}]


@pytest.mark.parametrize(
    ("response", "reference", "expected"),
    [("a b c", "d e f", 0.0), ("a", "b c d e", -0.75), ("a b c d", "e", -0.75), ("", "a", -1.0), ("", "", 0.0)],
)
def test_length_match(response, reference, expected):
    reward = LengthMatch()
    assert reward([Dialogue(["Hi ."], response, reference)]) == [expected]
    assert reward.name == "length_match"
    assert reward.needs == ("reference",)


def test_of_several_references_the_nearest_counts():
    several = Dialogue(["Hi ."], "a b c d", "e", references=["e", "f g h", "i j k l m n"])
    assert LengthMatch()([several]) == [-0.25]  # 3 words for 4; the first reference alone would give -0.75


def test_every_dialogue_is_worth_nothing():
    assert NoReward()([Dialogue(["Hi"], response="Ho")] * 3) == [0.0, 0.0, 0.0]


TURNS = ["the old mill", "how are you today", "fine , thanks"]


@pytest.mark.parametrize(
    ("turns", "response", "price"),
    [
        (2, "How are you today", -1.0),
        (2, "fine , thanks", -1.0),
        (2, "fine , thanks how are you", -4 / 5),  # all bigrams but "thanks how"
        (1, "how are you today", 0.0),
        (2, "the old mill", 0.0),
        (3, "the old mill", -1.0),
        (2, "fine", 0.0),
        (2, "", 0.0),
    ],
)
def test_bigrams_of_the_last_turns_cost(turns, response, price):
    assert RewardFactory.create("CopyPrice", {"turns": turns})([Dialogue(TURNS, response)]) == [pytest.approx(price)]


def test_by_default_two_turns_count():
    assert CopyPrice()([Dialogue(TURNS, text) for text in TURNS]) == [0.0, -1.0, -1.0]


def test_in_a_longer_episode_the_last_turns_are_those_before_the_response():
    dialogue = Dialogue(TURNS).with_reply("yes it is").with_user_turn("is it far").with_reply("is it far")
    assert CopyPrice(turns=1)([dialogue]) == [-1.0]
    assert CopyPrice(turns=1)(
        [Dialogue(TURNS).with_reply("yes it is").with_user_turn("why so").with_reply("fine , thanks")]
    ) == [0.0]


def test_reward_scores_each_response_against_its_own_reference():
    pairs = [("the cat sat", "the dog sat"), ("yes", "no"), ("a b c d", "a b")]
    dialogues = [Dialogue(["Hi ."], response, reference) for reference, response in pairs]
    reward = Meteor(meteor_wordnet="off")
    assert reward(dialogues) == pytest.approx([1 / 3, 0.0, 0.4934210526])
    assert reward([]) == []
    assert reward.needs == ("reference",)


@pytest.mark.parametrize("setting", ["auto", "require"])
def test_wordnet_on_this_machine_is_used(wordnet_folder, caplog, setting):
    caplog.set_level(logging.INFO)
    reward = Meteor(setting)
    assert reward.name == "meteor"
    assert "METEOR with WordNet" in caplog.text
    scores = reward([Dialogue(["Hi ."], "my car is red", "my auto is red")])
    assert scores == pytest.approx([1 - 0.5 / 4**3])


def test_off_leaves_wordnet_out(wordnet_folder):
    """PyYAML reads an unquoted off as False."""
    assert [Meteor(setting).name for setting in ("off", False)] == ["meteor_exact_stem"] * 2


def test_without_wordnet(no_wordnet, caplog):
    caplog.set_level(logging.INFO)
    assert Meteor().name == "meteor_exact_stem"
    assert "METEOR without WordNet (meteor_exact_stem)" in caplog.text
    with pytest.raises(UserError, match=r"python -m nltk\.downloader wordnet"):
        Meteor("require")


@pytest.mark.parametrize("setting", ["auto", "require"])
def test_broken_wordnet_is_no_silent_change_of_metric(wordnet_folder, setting):
    (wordnet_folder / "lexnames").unlink()
    with pytest.raises(UserError, match=r"on this machine but cannot be read"):
        Meteor(setting)
