"""Arguments that cannot work: each is refused with its key and its value, before a model is loaded."""

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import build_reward
from tests.parts.relevance_models import save_letters

EXPECTED, NLP = {"intent_model": "x", "intent_score": "expected"}, {"intent_coef": 0}


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("CopyPrice", {"turns": 0}, ("turns", "0", "at least 1")),
        ("CopyPrice", {"turns": True}, ("turns", "True")),
        ("Meteor", {"meteor_wordnet": "Auto"}, ("meteor_wordnet", "'Auto'", "auto, require, off")),
        ("Meteor", {"meteor_wordnet": True}, ("meteor_wordnet", "True")),
        ("LengthHold", {"words": 0}, ("words", "0", "above 0")),
        ("LengthHold", {"rate": -1}, ("rate", "-1", "at least 0")),
        ("LengthHold", {"gain": float("nan")}, ("gain", "nan")),
        ("LengthHold", {"gain": 10**400}, ("gain", "1000")),
        ("LengthHold", {"rate": True}, ("rate", "True")),
        ("LengthHold", {"max_price": "high"}, ("max_price", "'high'")),
        ("LikelihoodPrice", {"model": "x", "floor": 0}, ("floor", "0", "below 0")),
        ("LikelihoodPrice", {"model": "x", "floor": float("-inf")}, ("floor", "-inf")),
        ("LikelihoodPrice", {"model": "x", "tokens": 0}, ("tokens", "0")),
        ("LikelihoodPrice", {"model": "user/name"}, ("model", "'user/name'")),
        ("EncoderSimilarity", {"model": "user/name"}, ("model", "'user/name'")),
        ("RelevanceReward", {"model": "nowhere"}, ("model", "'nowhere'")),
        ("RelevanceReward", {"floor": -0.5}, ("floor", "-0.5", "at most -1")),
        ("RelevanceReward", {"bank_size": 0}, ("bank_size", "0")),
        ("RelevanceReward", {"ceiling": 0}, ("ceiling", "0", "above 0")),
        ("NLPReward", {}, ("intent_model", "intent_coef")),
        ("NLPReward", {"intent_coef": 0, "meteor_coef": 0}, ("intent_coef", "meteor_coef")),
        ("NLPReward", NLP | {"meteor_coef": float("nan")}, ("meteor_coef", "nan")),
        ("NLPReward", NLP | {"use_deepspeed": "yes"}, ("use_deepspeed", "'yes'")),
        ("NLPReward", {"intent_model": "./nothing"}, ("intent_model", "'./nothing'")),
        ("NLPReward", EXPECTED, ("act_model", "expected")),
        ("Intent", {"intent_model": "x", "intent_input": "both"}, ("intent_input", "'both'", "pair, concat")),
        ("Intent", {"intent_model": "x", "intent_score": "exact"}, ("intent_score", "'exact'", "match")),
        ("Intent", {"intent_model": "x", "act_model": "y"}, ("act_model", "match")),
        ("Intent", {"intent_model": "x", "batch_size": 0}, ("batch_size", "0")),
        ("Intent", {"intent_model": "x", "precision": "half"}, ("precision", "'half'", "bf16")),
        ("RewardModel", {"model": "./nowhere"}, ("model", "'./nowhere'")),
        ("RewardModel", {"model": "x", "clip": 0}, ("clip", "0", "above 0")),
        ("RewardModel", {"model": "x", "length_price": "dear"}, ("length_price", "'dear'")),
        ("RewardModel", {"model": "x", "batch_size": 0}, ("batch_size", "0")),
        ("RewardModel", {"model": "x", "max_length": 1.5}, ("max_length", "1.5")),
        ("RewardModel", {"model": "x", "normalize": "yes"}, ("normalize", "'yes'")),
        ("RewardModel", {"model": "x", "turn_separator": 5}, ("turn_separator", "5")),
        ("RewardModel", {"model": "x", "precision": "int8"}, ("precision", "'int8'")),
        ("RewardModel", {}, ("model", "members")),
        ("RewardModel", {"model": "x", "members": ["y"]}, ("model", "members")),
        ("RewardModel", {"members": ["./nowhere"]}, ("members[0]", "./nowhere")),
        ("RewardModel", {"model": "x", "combine": "max"}, ("combine", "'max'")),
    ],
)
def test_arguments_that_cannot_work(name, args, words, tmp_path):
    if name == "RelevanceReward" and "model" not in args:
        args = args | {"model": save_letters(tmp_path / "relevance")}
    with pytest.raises(UserError) as caught:
        build_reward(name, args)
    assert [word for word in words if word not in str(caught.value)] == []
