"""Checks of single values. Those of OneOf are in test_schema.py, where its keys are."""

import pytest

from rlhf_dialog.config.checks import folder_name, repository_name
from rlhf_dialog.config.loading import dump_yaml, load_config
from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError
from tests.parts.trainers import settings
from tests.parts.yaml_files import SMALL, message


@pytest.mark.parametrize("name", ["a", "first try", "v1.2", "été-你好", "x" * 201, "a..b", "~", None])
def test_names_of_folders(name):
    assert folder_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", ".x", "a/b", "a\\b", "x" * 202, "你" * 80, "a\x1b[2J", "a\n", "a\tb", "\x00"),
        *("\u202egpj", "\udc80"),
    ],
)
def test_what_cannot_be_the_name_of_a_folder(name):
    with pytest.raises(ValueError, match="the name of a folder: at most 201 letters"):
        folder_name(name)


@pytest.mark.parametrize("file", [".x.yaml", ".yaml", "a\x1b[2J.yaml", "a\nb.yaml"])
def test_the_name_of_a_file_that_is_not_the_name_of_a_run(write, file):
    assert "experiment_name: found " in message(write(SMALL, file))
    assert "so set another with --experiment_name" in message(write(SMALL, file))
    assert load_config(write(SMALL, file), {"experiment_name": "x"}).experiment_name == "x"


def test_numbers_that_are_large_and_possible(write):
    possible = {"total_time_steps": 10**11, "rollout_batch_size": 10**6, "pytorch_threads": 512}
    possible |= {"reward_timeout_s": 604800}
    config = load_config(write(SMALL), dict(possible))
    assert {key: getattr(config, key) for key in possible} == possible


@pytest.mark.parametrize("name", ["polite", "ada/polite", "A.b_c-d/1", "x" * 96, None])
def test_names_of_repositories(name):
    assert repository_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "a/b/c", "a--b", "a..b", "-a", "a.", "a b", "x" * 97, "a.git", "https://huggingface.co/a", "é", "a/", "a\x1b"],
)
def test_what_cannot_be_the_name_of_a_repository(name, write):
    told = message(write(SMALL), {"push_to_hub": name})
    assert "push_to_hub: found " in told
    assert ", wanted the name of a repository on the Hub, NAME or USER/NAME" in told


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"experiment_name": "\x1b[2J"}, r"experiment_name: found '\x1b[2J', wanted the name of a folder"),
        ({"rollout_batch_size": "1000001"}, "rollout_batch_size: found '1000001', wanted less than or equal"),
        ({"pytorch_threads": 1025}, "pytorch_threads: found 1025, wanted less than or equal"),
        ({"max_new_tokens": "1e15"}, "max_new_tokens: found 1000000000000000.0, wanted less than or equal"),
        ({"total_time_steps": "1e15"}, "total_time_steps: found '1e15', wanted "),
        ({"reward_timeout_s": 1e300}, "reward_timeout_s: found 1e+300, wanted less than or equal"),
        ({"total_episodes": 9, "max_iterations": 2}, "total_episodes: 9 beside max_iterations: 2: a run has one end"),
        ({"total_episodes": 9, "total_time_steps": 500}, "total_episodes: 9 beside total_time_steps: 500: a run"),
        ({"total_episodes": 0}, "total_episodes: found 0, wanted greater than or equal to 1"),
        ({"whiten_rewards": True, "advantage_estimator": "grpo"}, "whiten_rewards: grpo compares the sums"),
        ({"kl_estimator": "k3", "kl_in": "loss"}, "kl_estimator: kl_in: loss computes the exact KL"),
        ({"reference": False}, "reference: false needs kl_coef: 0, found 0.2; set one of them"),
        ({"reference": False, "kl_coef": 0, "ref_model": "m"}, "reference: false, but ref_model: m needs a reference"),
        ({"reference": False, "kl_coef": 0, "kl_in": "loss"}, "reference: false, but kl_in: loss needs a reference"),
        ({"credit": "turn", "advantage_estimator": "rloo"}, "credit: turn needs an advantage_estimator with a critic"),
        ({"kl_estimator": "k2"}, "kl_estimator: found 'k2', wanted 'k1' or 'k3'"),
        ({"value_clip_param": 0}, "value_clip_param: found 0, wanted greater than 0"),
        ({"stop_token_ids": [3, -1]}, "stop_token_ids.1: found -1, wanted greater than or equal to 0"),
        ({"stop_token_ids": [True]}, "stop_token_ids.0: found True, wanted a valid integer"),
        ({"stop_token_ids": 3}, "stop_token_ids: found 3, wanted a valid list"),
    ],
)
def test_what_no_machine_can_meet_and_what_contradicts_itself(write, keys, told):
    assert f"1 problem\n  {told}" in message(write(SMALL), keys)


def test_a_saved_configuration_with_another_end_loads_again(write):
    saved = dump_yaml(load_config(write(SMALL), {"total_episodes": 9}))
    assert load_config(write(saved)).total_episodes == 9


@pytest.mark.parametrize(
    "keys",
    [{"advantage_estimator": "rloo"}, {"use_lora": True}, {"use_share_model": True, "use_deepspeed": True}],
)
def test_a_separate_critic_and_the_head_of_a_shared_model_learn_alone(keys):
    given = {"model_path": "m", "env": {"args": {"data_path": "d"}}, "reward_class": {"id": "LengthMatch"}}
    shared = {"use_share_model": True}
    for allowed in ({}, shared, {**shared, "use_lora": True}, {**shared, "use_fsdp": True}):
        assert Config(**given, **allowed, critic_warmup=3).critic_warmup == 3
    with pytest.raises(UserError, match="critic_warmup: only the head of a shared model"):
        Config(**given, **keys, critic_warmup=3)


def test_only_a_separate_critic_has_a_start_of_its_own():
    given = {"model_path": "m", "env": {"args": {"data_path": "d"}}, "reward_class": {"id": "LengthMatch"}}
    with pytest.raises(UserError, match="critic_path: only a separate critic"):
        Config(**given, use_share_model=True, critic_path="m")


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({}, "auto"),
        ({"amp_dtype": "fp16"}, "auto"),
        ({"precision": "bf16"}, "bf16"),
        ({"precision": "fp32"}, "fp32"),
        ({"use_amp": False}, "fp32"),
        ({"use_amp": False, "amp_dtype": "fp16"}, "fp32"),
        ({"use_amp": True}, "bf16"),
        ({"use_amp": True, "amp_dtype": "fp16"}, "fp16"),
        ({"use_amp": True, "precision": "fp16"}, "fp16"),
        ({"use_amp": True, "amp_dtype": "bf16", "precision": "bf16"}, "bf16"),
        ({"use_amp": False, "amp_dtype": "fp16", "precision": "fp32"}, "fp32"),
        ({"use_amp": None, "precision": "auto"}, "auto"),  # as a run folder's config.yaml has it
    ],
)
def test_what_the_keys_ask_for(keys, wanted):
    config = settings(**keys)
    assert config.asked_precision == wanted
    assert config.uses_fp16 == (wanted == "fp16")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"precision": "fp32", "use_amp": True},
            "precision: fp32, but use_amp: true; keep precision, and leave out use_amp",
        ),
        ({"precision": "bf16", "use_amp": False}, "precision: bf16, but use_amp: false;"),
        ({"precision": "fp16", "amp_dtype": "bf16"}, "precision: fp16, but amp_dtype: bf16;"),
        (
            {"precision": "bf16", "use_amp": False, "amp_dtype": "fp16"},
            "precision: bf16, but use_amp: false and amp_dtype: fp16; keep precision, and leave out use_amp and amp_dtype",
        ),
    ],
)
def test_two_keys_that_ask_for_two_things(keys, message):
    with pytest.raises(UserError, match=message):
        settings(**keys)


@pytest.mark.parametrize("end", ["total_episodes: 9", "total_time_steps: 500", "max_iterations: 7"])
@pytest.mark.parametrize("key", ["max_iterations", "total_episodes", "total_time_steps"])
def test_an_end_of_the_command_line_replaces_that_of_the_file(write, end, key):
    config = load_config(write(f"{SMALL}{end}\n"), {key: 2})
    ends = {
        name: Config.model_fields[name].default for name in ("max_iterations", "total_episodes", "total_time_steps")
    }
    assert {name: getattr(config, name) for name in ends} == ends | {key: 2}
