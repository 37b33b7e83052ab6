"""METEOR as a reward: each response against its own reference; WordNet found, refused and left out."""

import logging

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.meteor import Meteor, load_wordnet


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


@pytest.mark.parametrize("setting", ["off", False])  # PyYAML reads an unquoted off as False
def test_off_leaves_wordnet_out(wordnet_folder, setting):
    assert load_wordnet(setting) is None
    assert Meteor(setting).name == "meteor_exact_stem"


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


@pytest.mark.parametrize("setting", ["on", True, None, "Auto"])
def test_other_setting_names_the_three(setting):
    with pytest.raises(UserError, match=r"reward_class\.args\.meteor_wordnet.*auto, require, off"):
        Meteor(setting)
