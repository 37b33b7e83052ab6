"""The keys: their defaults, those without effect, and one that depends on another."""

import pytest
import yaml

from rlhf_dialog.config.loading import (
    dump_yaml,
    load_config,
    replace_keys,
    walk,
)
from rlhf_dialog.config.schema import Config, PPOKeys, RewardKeys
from rlhf_dialog.config.synonyms import NO_EFFECT
from tests.parts.yaml_files import SMALL


def test_the_defaults_are_the_documents(write):
    config = load_config(write(SMALL))
    assert (config.episode_length, config.env_num, config.num_mini_batch, config.ppo_epoch) == (128, 5, 20, 5)
    assert (config.lr, config.critic_lr, config.total_time_steps, config.run_dir) == (
        1e-6,
        1e-6,
        100_000,
        "./run_results",
    )
    assert (config.kl_coef, config.kl_target, config.kl_rate, config.kl_clip) == (0.2, 0.05, 0.1, 0.2)
    assert (config.save_interval, config.log_interval, config.context_size, config.min_context_size) == (5, 1, 5, 1)
    assert (config.opti_eps, config.turn_separator, config.trust_remote_code) == (1e-5, "<EOU>", False)
    assert config.ref_model is None
    assert config.vec_info_class.id == "NLPVecInfo"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 1),
        ("advantage_estimator: grpo", 4),
        ("advantage_estimator: rloo\nnum_responses_per_prompt: null", 4),
        ("advantage_estimator: reinforce_pp\nnum_responses_per_prompt: ~", 1),
        ("num_responses_per_prompt: 3", 3),
        ("advantage_estimator: rloo\nnum_responses_per_prompt: 2", 2),
    ],
)
def test_the_responses_per_prompt_are_a_number_once_loaded_and_saved(write, text, number):
    config = load_config(write(SMALL + text + "\n"))
    assert config.num_responses_per_prompt == number
    saved = dump_yaml(config)
    assert yaml.safe_load(saved)["num_responses_per_prompt"] == number
    assert load_config(write(saved)) == config


def test_replaced_keys_take_along_what_nobody_set(write):
    plain, chosen = load_config(write(SMALL)), load_config(write(SMALL + "num_responses_per_prompt: 2\n"))
    assert replace_keys(plain, {"seed": 3}).model_dump() == plain.model_dump() | {"seed": 3}
    assert replace_keys(plain, {"advantage_estimator": "grpo"}).num_responses_per_prompt == 4
    assert replace_keys(chosen, {"advantage_estimator": "grpo"}).num_responses_per_prompt == 2
    assert (
        replace_keys(replace_keys(chosen, {"seed": 3}), {"advantage_estimator": "grpo"}).num_responses_per_prompt == 2
    )
    plain.num_responses_per_prompt = None  # type: ignore[assignment]
    assert plain.num_responses_per_prompt == 1
    with pytest.raises(ValueError, match="found 1"):
        plain.advantage_estimator = "rloo"


def test_no_key_both_works_and_has_no_effect():
    keys = [key for key, _ in walk(Config)]
    assert len(keys) == len(set(keys))
    assert not set(keys) & set(NO_EFFECT)
    assert "env.args.data_path" in keys


def test_every_number_of_ppo_and_the_reward_but_the_learning_rates_has_an_upper_bound():
    numbers = [
        (name, field)
        for keys in (PPOKeys, RewardKeys)
        for name, field in keys.model_fields.items()
        if field.annotation in (float, float | None)
    ]
    unbounded = {name for name, field in numbers if not any(hasattr(limit, "le") for limit in field.metadata)}
    assert len(numbers) > 15
    assert unbounded == {"lr", "critic_lr"}  # a rate that is far too high stops the run by itself
