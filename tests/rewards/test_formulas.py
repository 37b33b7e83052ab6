"""Rewards of a formula each, by hand: length, a length that is held, copies, METEOR, NLPReward, and none."""

import json
import logging

import pytest
import torch.distributed as dist

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import CopyPrice, LengthHold, Meteor, NoReward, RewardError, Scorer, build_reward
from rlhf_dialog.rewards.intent import Intent
from rlhf_dialog.rewards.length import LengthMatch
from rlhf_dialog.rewards.nlp_reward import NLPReward
from rlhf_dialog.rewards.scoring import begin_scoring, load_state, metrics_of, state_of
from tests.parts.classifiers import letters
from tests.parts.ranks import in_ranks


def test_nlp_reward_is_the_weighted_sum(pair_folder):
    dialogues = [Dialogue([letters(5, i)], letters(4, 100 + i), letters(4, 100 + i), act=1 + i % 4) for i in range(8)]
    intents = Intent(pair_folder)(dialogues)
    assert 0 < sum(intents) < 8
    # response = reference, 4 words in one chunk: METEOR 1 - 0.5 / 4^3
    reward = NLPReward(pair_folder, intent_coef=0.3, meteor_coef="6e-1", meteor_wordnet="off")
    expected = [0.3 * value + 0.6 * (1 - 0.5 / 64) for value in intents]
    assert reward(dialogues) == pytest.approx(expected)
    assert set(reward.needs) == {"reference", "act"}
    assert list(Scorer(reward).score(dialogues).parts) == ["intent", "meteor_exact_stem"]
    probable = [0.5 * x for x in Intent(pair_folder, intent_score="probability")(dialogues)]
    assert NLPReward(pair_folder, meteor_coef=0, intent_score="probability")(dialogues) == pytest.approx(probable)


@pytest.mark.parametrize(
    ("response", "references", "expected"),
    [
        ("a b c", ["d e f"], 0.0),
        ("a", ["b c d e"], -0.75),
        ("a b c d", ["e"], -0.75),
        ("", ["a"], -1.0),
        ("", [""], 0.0),
        ("a b c d", ["e", "f g h", "i j k l m n"], -0.25),  # of several references the nearest counts
    ],
)
def test_length_match(response, references, expected):
    reward = LengthMatch()
    assert reward([Dialogue(["Hi ."], response, references[0], references=references)]) == [expected]
    assert (reward.name, reward.needs) == ("length_match", ("reference",))


@pytest.mark.parametrize(("response", "expected"), [("a b c d", 0.0), ("a", -0.75), ("a b c d e", -0.2), ("", -1.0)])
def test_length_match_of_words_needs_no_reference(response, expected):
    reward = RewardFactory.create("LengthMatch", {"words": 4})
    assert reward([Dialogue(["Hi ."], response)]) == [expected]
    assert reward.needs == ()
    with pytest.raises(UserError, match="words"):
        LengthMatch(words=0)


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


def test_by_default_two_turns_count_and_they_are_those_before_the_response():
    assert CopyPrice()([Dialogue(TURNS, text) for text in TURNS]) == [0.0, -1.0, -1.0]
    went_on = Dialogue(TURNS).with_reply("yes it is").with_user_turn("is it far")
    replies = [went_on.with_reply(text) for text in ("is it far", "fine , thanks")]
    assert CopyPrice(turns=1)(replies) == [-1.0, 0.0]
    assert NoReward()(replies) == [0.0, 0.0]


# -- METEOR, whose formula is in tests/metrics


def test_reward_scores_each_response_against_its_own_reference():
    pairs = [("the cat sat", "the dog sat"), ("yes", "no"), ("a b c d", "a b")]
    dialogues = [Dialogue(["Hi ."], response, reference) for reference, response in pairs]
    reward = Meteor(meteor_wordnet="off")
    assert reward(dialogues) == pytest.approx([1 / 3, 0.0, 0.4934210526])
    assert (reward([]), reward.needs) == ([], ("reference",))


def test_wordnet_on_this_machine_is_used_unless_it_is_off(wordnet_folder, caplog):
    caplog.set_level(logging.INFO)
    for setting in ("auto", "require"):
        reward = Meteor(setting)
        assert reward.name == "meteor"
        assert reward([Dialogue(["Hi ."], "my car is red", "my auto is red")]) == pytest.approx([1 - 0.5 / 4**3])
    assert "METEOR with WordNet" in caplog.text
    names = {Meteor(setting).name for setting in ("off", False)}  # PyYAML reads off as False
    assert names == {"meteor_exact_stem"}


@pytest.mark.parametrize("setting", ["auto", "require"])
def test_a_broken_wordnet_is_no_silent_change_of_metric(wordnet_folder, setting):
    (wordnet_folder / "lexnames").unlink()
    with pytest.raises(RewardError, match="reward 'Meteor' raised"):
        build_reward("Meteor", {"meteor_wordnet": setting})


def test_without_wordnet(no_wordnet, caplog):
    caplog.set_level(logging.INFO)
    assert Meteor().name == "meteor_exact_stem"
    assert "METEOR without WordNet (meteor_exact_stem)" in caplog.text
    with pytest.raises(UserError, match=r"python -m nltk\.downloader wordnet"):
        Meteor("require")


# -- LengthHold


def said(*lengths):
    return [Dialogue(["a b"], "w " * length) for length in lengths]


def rollout(reward, iteration, *lengths):
    begin_scoring(reward, "rollout", iteration)
    scores = reward(said(*lengths))
    return scores, metrics_of(reward)


def test_the_first_rollout_is_held_and_the_price_follows_the_mean():
    reward = LengthHold(rate=0.5, gain=2.0)
    assert rollout(reward, 1, 4, 16) == (
        [0.0, 0.0],
        {"length_hold/price": 0.0, "length_hold/words": 10.0, "length_hold/held": 10.0},
    )
    assert rollout(reward, 2, 12, 12)[0] == [0.0, 0.0]  # the price moves after the scores
    assert reward.price == pytest.approx(2 * 0.2 + 0.5 * 0.2)
    scores, found = rollout(reward, 3, 10, 15, 5)
    assert scores == [pytest.approx(0.0), pytest.approx(-0.25), pytest.approx(0.25)]
    assert found["length_hold/price"] == pytest.approx(0.5 * 0.2)  # the mean is held; the debt stays
    rollout(reward, 4, 5)
    assert reward.price == pytest.approx(2 * -0.5 + 0.5 * 0.2 - 0.5 * 0.5)


def test_a_length_of_your_own_is_held_from_the_start_and_rollouts_alone_move_the_price():
    reward = LengthHold(words=5, rate=0, gain=1)
    for purpose in ("validation", "evaluation"):
        begin_scoring(reward, purpose, 3)
        reward(said(50))
    assert metrics_of(reward)["length_hold/price"] == 0
    assert rollout(reward, 1, 10)[0] == [0.0]
    begin_scoring(reward, "validation", 1)
    assert reward(said(6, 1)) == [pytest.approx(-1 * 0.2), pytest.approx(0.8)]
    assert metrics_of(reward)["length_hold/price"] == reward.price == 1


def test_the_price_has_bounds():
    reward = LengthHold(words=1, max_price=1.5)
    for iteration in range(3):
        rollout(reward, iteration, 100)
    assert (reward.price, reward.debt) == (1.5, 1.5)
    rollout(reward, 4, 0)
    assert reward.price == pytest.approx(-2.0 + 1.5 - 0.2)
    assert rollout(LengthHold(words=1), 1, 100)[1]["length_hold/price"] == 4.0
    assert rollout(LengthHold(), 1, 0, 0)[1]["length_hold/held"] == 1.0  # at least one word is held


def test_a_resumed_reward_goes_on_bit_for_bit():
    lengths = [(7, 9), (11, 12), (13, 5), (2, 9)]
    whole, first, second = LengthHold(), LengthHold(), LengthHold()
    for i, some in enumerate(lengths[:2]):
        assert rollout(whole, i, *some) == rollout(first, i, *some)
    load_state(second, json.loads(json.dumps(state_of(first))))
    for i, some in enumerate(lengths[2:]):
        assert rollout(whole, i + 2, *some) == rollout(second, i + 2, *some)


def ends_with(world) -> list:
    """The price after a rollout of which rank 0 has three responses and rank 1 has one, or none."""
    reward, found = LengthHold(words=10, rate=0.1, gain=1), []
    for own in ([(10, 20, 30), (40,)], [(10, 20, 30), ()]):
        begin_scoring(reward, "rollout", 1)
        reward(said(*own[world.rank]))
        found.append(metrics_of(reward)["length_hold/words"])
    return [*found, reward.price]


@pytest.mark.multiprocess
def test_all_ranks_move_the_price_by_the_mean_of_all():
    assert not dist.is_initialized()
    for found in in_ranks(2, ends_with):
        assert found == [25.0, 20.0, pytest.approx(1.0 + 0.1 * (1.5 + 1.0))]
