"""Checks of single values. Those of OneOf are in test_schema.py, where its keys are."""

import pytest

from rlhf_dialog.config.checks import folder_name, repository_name
from rlhf_dialog.config.loading import dump_yaml, load_config
from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError
from tests.parts.trainers import settings
from tests.parts.yaml_files import SMALL, message

NAMES = [*("a", "first try", "v1.2", "été-你好", "x" * 201, "a..b", "~", None)]


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", ".x", "a/b", "a\\b", "x" * 202, "你" * 80, "a\x1b[2J", "a\n", "a\tb", "\x00"),
        *("\u202egpj", "\udc80"),
    ],
)
def test_what_cannot_be_the_name_of_a_folder(name):
    with pytest.raises(ValueError, match="the name of a folder"):
        folder_name(name)
    assert [folder_name(good) for good in NAMES] == NAMES


@pytest.mark.parametrize("name", ["", "a/b/c", "a--b", "a..b", "a.", "a b", "x" * 97, "a.git", "é", "a\x1b"])
def test_names_of_repositories(name, write):
    assert "push_to_hub: found " in message(write(SMALL), {"push_to_hub": name})
    for good in ("polite", "ada/polite", "A.b_c-d/1", "x" * 96, None):
        assert repository_name(good) == good


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
    with pytest.raises(UserError, match="critic_warmup: only a separate critic"):
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


@pytest.mark.parametrize("end", ["total_episodes: 9", "total_time_steps: 500", "max_iterations: 7"])
@pytest.mark.parametrize("key", ["max_iterations", "total_episodes", "total_time_steps"])
def test_an_end_of_the_command_line_replaces_that_of_the_file(write, end, key):
    config = load_config(write(f"{SMALL}{end}\n"), {key: 2})
    ends = {
        name: Config.model_fields[name].default for name in ("max_iterations", "total_episodes", "total_time_steps")
    }
    assert {name: getattr(config, name) for name in ends} == ends | {key: 2}
