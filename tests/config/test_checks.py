"""Checks of single values. Those of OneOf are in test_schema.py, where its keys are."""

import pytest

from rlhf_dialog.config.checks import folder_name, repository_name
from rlhf_dialog.config.loading import dump_yaml, load_config
from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError
from tests.parts.trainers import settings


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


MINIMAL = "env: {args: {data_path: ./data}}\nmodel_path: m\nreward_class: {id: NLPReward}\n"


def test_the_name_of_a_run_has_no_control_characters(tmp_path):
    (tmp_path / "a.yaml").write_text(MINIMAL, encoding="utf-8")
    with pytest.raises(UserError, match=r"experiment_name: found '.x1b\[2J', wanted the name of a folder"):
        load_config(tmp_path / "a.yaml", {"experiment_name": "\x1b[2J"})


@pytest.mark.parametrize("file", [".x.yaml", ".yaml", "a\x1b[2J.yaml", "a\nb.yaml"])
def test_the_name_of_a_file_that_is_not_the_name_of_a_run(tmp_path, file):
    (tmp_path / file).write_text(MINIMAL, encoding="utf-8")
    with pytest.raises(UserError, match=r"experiment_name: found .*so set another with --experiment_name"):
        load_config(tmp_path / file)
    assert load_config(tmp_path / file, {"experiment_name": "x"}).experiment_name == "x"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rollout_batch_size", "1000001"),
        ("pytorch_threads", 1025),
        ("max_new_tokens", "1e15"),
        ("total_time_steps", "1e15"),
        ("reward_timeout_s", 1e300),
    ],
)
def test_numbers_that_no_machine_can_meet(tmp_path, key, value):
    (tmp_path / "a.yaml").write_text(MINIMAL, encoding="utf-8")
    with pytest.raises(
        UserError, match=rf"1 problem\n  {key}: found .*, wanted (a whole number of at most|less than or equal)"
    ):
        load_config(tmp_path / "a.yaml", {key: value})


def test_numbers_that_are_large_and_possible(tmp_path):
    (tmp_path / "a.yaml").write_text(MINIMAL, encoding="utf-8")
    wanted = {
        "total_time_steps": 10**11,
        "rollout_batch_size": 10**6,
        "pytorch_threads": 512,
        "reward_timeout_s": 604800,
    }
    config = load_config(tmp_path / "a.yaml", dict(wanted))
    assert {key: getattr(config, key) for key in wanted} == wanted


@pytest.mark.parametrize("name", ["polite", "ada/polite", "A.b_c-d/1", "x" * 96, None])
def test_names_of_repositories(name):
    assert repository_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "a/b/c", "a--b", "a..b", "-a", "a.", "a b", "x" * 97, "a.git", "https://huggingface.co/a", "é", "a/", "a\x1b"],
)
def test_what_cannot_be_the_name_of_a_repository(name, tmp_path):
    (tmp_path / "a.yaml").write_text(MINIMAL, encoding="utf-8")
    with pytest.raises(
        UserError, match=r"push_to_hub: found .*, wanted the name of a repository on the Hub, NAME or USER/NAME"
    ):
        load_config(tmp_path / "a.yaml", {"push_to_hub": name})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"total_episodes": 9, "max_iterations": 2}, "total_episodes: 9 beside max_iterations: 2: a run has one end"),
        (
            {"total_episodes": 9, "total_time_steps": 500},
            "total_episodes: 9 beside total_time_steps: 500: a run has one",
        ),
        ({"total_episodes": 0}, "total_episodes: found 0, wanted greater than or equal to 1"),
        (
            {"whiten_rewards": True, "advantage_estimator": "grpo"},
            "whiten_rewards: grpo compares the sums of the rewards",
        ),
        ({"kl_estimator": "k3", "kl_in": "loss"}, "kl_estimator: kl_in: loss computes the exact KL"),
        (
            {"credit": "turn", "advantage_estimator": "rloo"},
            "credit: turn needs an advantage_estimator with a critic (gae)",
        ),
        ({"kl_estimator": "k2"}, "kl_estimator: found 'k2', wanted 'k1' or 'k3'"),
        ({"value_clip_param": 0}, "value_clip_param: found 0, wanted greater than 0"),
        ({"stop_token_ids": [3, -1]}, "stop_token_ids.1: found -1, wanted greater than or equal to 0"),
        ({"stop_token_ids": [True]}, "stop_token_ids.0: found True, wanted a valid integer"),
        ({"stop_token_ids": 3}, "stop_token_ids: found 3, wanted a valid list"),
    ],
)
def test_ends_and_estimators_that_contradict_each_other(tmp_path, keys, message):
    (tmp_path / "a.yaml").write_text(MINIMAL, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_config(tmp_path / "a.yaml", keys)
    assert f"  {message}" in str(caught.value)


def test_a_saved_configuration_with_another_end_loads_again(tmp_path):
    (tmp_path / "a.yaml").write_text(MINIMAL, encoding="utf-8")
    (tmp_path / "b.yaml").write_text(
        dump_yaml(load_config(tmp_path / "a.yaml", {"total_episodes": 9})), encoding="utf-8"
    )
    assert load_config(tmp_path / "b.yaml").total_episodes == 9


@pytest.mark.parametrize("keys", [{"use_share_model": True}, {"advantage_estimator": "rloo"}, {"use_lora": True}])
def test_only_a_separate_critic_learns_alone(keys):
    given = {"model_path": "m", "env": {"args": {"data_path": "d"}}, "reward_class": {"id": "LengthMatch"}}
    assert Config(**given, critic_warmup=3).critic_warmup == 3
    with pytest.raises(ValueError, match="critic_warmup: only a separate critic learns alone"):
        Config(**given, **keys, critic_warmup=3)


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
    with pytest.raises(ValueError, match=message):
        settings(**keys)


@pytest.mark.parametrize("end", ["total_episodes: 9", "total_time_steps: 500", "max_iterations: 7"])
@pytest.mark.parametrize("key", ["max_iterations", "total_episodes", "total_time_steps"])
def test_an_end_of_the_command_line_replaces_that_of_the_file(tmp_path, end, key):
    path = tmp_path / "a.yaml"
    path.write_text(f"{MINIMAL}\n{end}\n", encoding="utf-8")
    config = load_config(path, {key: 2})
    ends = {
        name: Config.model_fields[name].default for name in ("max_iterations", "total_episodes", "total_time_steps")
    }
    assert {name: getattr(config, name) for name in ends} == ends | {key: 2}
