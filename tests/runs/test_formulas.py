"""The list of the formulas that changed: what each run hears of it, and the keys that an old checkpoint does not know."""

import pytest
from trainers import settings

from rlhf_dialog.config.schema import Config
from rlhf_dialog.runs import formulas, identity


@pytest.mark.parametrize(
    ("keys", "word", "is_named"),
    [
        ({}, "the losses", True),
        ({}, "the value normaliser", True),
        ({"use_valuenorm": False}, "the value normaliser", False),
        ({"advantage_estimator": "rloo", "rollout_batch_size": 8}, "the value normaliser", False),
        ({"advantage_estimator": "rloo", "rollout_batch_size": 8}, "the advantages", True),
        ({"advantage_estimator": "rloo", "rollout_batch_size": 8}, "grpo", False),
        ({"advantage_estimator": "grpo", "rollout_batch_size": 8}, "grpo", True),
        ({"advantage_estimator": "reinforce_pp"}, "the advantages", False),
        ({"truncation_penalty": 0.1}, "eval/score", False),
        ({"truncation_penalty": 0.1, "eval_interval": 2}, "eval/score", True),
        ({"reward_class": {"id": "CompositeReward", "args": {"parts": [{"id": "LengthMatch"}]}}}, "LengthMatch", True),
        ({}, "LengthMatch", False),
        ({}, "the turn_separator", True),
        ({}, "the chat template", False),
        ({"turn_separator": "chat_template"}, "the turn_separator", False),
        ({"turn_separator": "chat_template"}, "the chat template", True),
    ],
)
def test_a_run_hears_of_the_formulas_that_it_uses(keys, word, is_named):
    assert any(text.startswith(word) for text in formulas.changes_since(1, settings(**keys))) is is_named


@pytest.mark.parametrize(
    ("keys", "settings_then", "kept"),
    [
        ({}, {"use_amp": False, "amp_dtype": "auto"}, {"use_amp": False}),  # strict float32, on a GPU too
        ({}, {"use_amp": True, "amp_dtype": "fp16"}, {"use_amp": True, "amp_dtype": "fp16"}),
        ({}, {}, {"use_amp": False}),
        ({}, None, {"use_amp": False}),
        ({"precision": "bf16"}, {"use_amp": False}, {}),
        ({"use_amp": True}, {"use_amp": False}, {}),
        ({}, {"precision": "auto", "use_amp": None, "amp_dtype": "auto"}, {}),
        ({}, {"precision": "bf16", "use_amp": None, "amp_dtype": "auto"}, {"precision": "bf16"}),
        (
            {},
            {"precision": "auto", "use_amp": False, "amp_dtype": "auto"},
            {"use_amp": False},
        ),  # resumed for a second time
    ],
)
def test_a_run_goes_on_in_its_precision_unless_the_user_asks_for_one(keys, settings_then, kept):
    config = settings(**keys)
    assert formulas.old_precision(config, settings_then) == kept
    for key, value in kept.items():
        setattr(config, key, value)  # each of them is valid beside the others
    assert formulas.old_precision(settings(), identity.settings_of(settings())) == {}


def test_a_run_of_today_hears_nothing():
    config = settings()
    assert identity.record(config, {})["formulas"] == formulas.REVISION
    assert formulas.changes_since(formulas.REVISION, config) == []


def test_a_key_keeps_the_meaning_that_it_has_in_the_checkpoint_unless_the_user_sets_it():
    assert formulas.old_meanings(settings(), {}) == {"kl_hold": False, "kl_coef_max": None}
    assert formulas.old_meanings(settings(), None) == {"kl_hold": False, "kl_coef_max": None}
    assert formulas.old_meanings(settings(kl_hold=True), {"kl_coef_max": 3.0}) == {"kl_coef_max": 3.0}
    config = settings()
    assert formulas.old_meanings(config, identity.settings_of(config)) == {}
    assert set(formulas.OLD_MEANINGS) <= set(Config.model_fields)
