"""NLPReward: its weighted sum of intent and METEOR, and wrong arguments."""

import logging

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import score_dialogues
from rlhf_dialog.rewards.intent import Intent
from rlhf_dialog.rewards.nlp_reward import NLPReward
from tests.parts.classifiers import letters
from tests.parts.given import DIALOGUES


def test_nlp_reward_without_intent(caplog):
    caplog.set_level(logging.INFO)
    reward = NLPReward(intent_coef=0, meteor_coef="5e-1", meteor_wordnet="off", use_deepspeed=True)
    scores = score_dialogues(reward, DIALOGUES)
    assert list(scores.parts) == ["meteor_exact_stem"]
    assert scores.total == pytest.approx([0, 0, 1 / 6])
    assert reward.needs == ("reference",)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, r"reward_class\.args\.intent_model.*`intent_coef: 0`"),
        ({"intent_coef": 0, "meteor_coef": 0}, r"both 0"),
        ({"intent_coef": "high"}, r"reward_class\.args\.intent_coef: 'high' must be a finite number"),
        ({"intent_coef": 0, "meteor_coef": float("nan")}, r"reward_class\.args\.meteor_coef: nan"),
        ({"intent_model": "./nothing"}, r"reward_class\.args\.intent_model: no such folder: './nothing'"),
        ({"intent_coef": 0, "meteor_wordnet": "on"}, r"reward_class\.args\.meteor_wordnet"),
    ],
)
def test_nlp_reward_mistakes(args, message):
    with pytest.raises(UserError, match=message):
        NLPReward(**args)


def test_nlp_reward_is_the_weighted_sum(pair_folder):
    dialogues = [Dialogue([letters(5, i)], letters(4, 100 + i), letters(4, 100 + i), act=1 + i % 4) for i in range(8)]
    intents = Intent(pair_folder)(dialogues)
    assert 0 < sum(intents) < 8
    # response = reference, 4 words in one chunk: METEOR 1 - 0.5 / 4^3
    reward = NLPReward(pair_folder, intent_coef=0.3, meteor_coef=0.6, meteor_wordnet="off")
    expected = [0.3 * value + 0.6 * (1 - 0.5 / 64) for value in intents]
    assert reward(dialogues) == pytest.approx(expected)
    assert set(reward.needs) == {"reference", "act"}
    assert list(score_dialogues(reward, dialogues).parts) == ["intent", "meteor_exact_stem"]
