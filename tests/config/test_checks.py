"""Checks of single values. Those of OneOf are in test_schema.py, where its keys are."""

import pytest

from rlhf_dialog.config.checks import folder_name, repository_name, tree_problem
from rlhf_dialog.config.loading import dump_yaml, load_config, parse_arguments
from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError


@pytest.mark.parametrize("name", ["a", "first try", "v1.2", "été-你好", "x" * 201, "a..b", "~", None])
def test_names_of_folders(name):
    assert folder_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".x",
        "a/b",
        "a\\b",
        "x" * 202,
        "你" * 80,
        "a\x1b[2J",
        "a\n",
        "a\tb",
        "\x00",
        "\u202egpj",
        "\udc80",
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


def laughs(depth: int, wide: int) -> str:
    """A YAML of `depth` short lines that unfolds to wide ** depth values, as the args of a part."""
    levels = [f"    - &l{i} [{', '.join([f'*l{i - 1}' if i else 'lol'] * wide)}]" for i in range(depth)]
    parts = f"{{parts: [{{id: LengthMatch, args: {{x: *l{depth - 1}}}}}]}}"
    return "\n".join(["model_path: m", "lora_target_modules:", *levels, "env: {args: {data_path: d}}"]) + (
        f"\nreward_class: {{id: CompositeReward, args: {parts}}}\n"
    )


def test_aliases_that_unfold_to_a_billion_values(tmp_path):
    (tmp_path / "a.yaml").write_text(laughs(9, 10), encoding="utf-8")
    with pytest.raises(UserError, match=r"a.yaml: its aliases .* unfold to more than 100000 values"):
        load_config(tmp_path / "a.yaml")
    levels = ", ".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}' if i else '1'] * 10)}]" for i in range(9))
    with pytest.raises(UserError, match=r"--reward_class.args: its aliases"):
        parse_arguments(["--reward_class.args", f"{{{levels}}}"], [])


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ({"a": [1, {"b": []}]}, None),
        ([[0] * 300] * 300, None),  # 90,301 values
        ([[0] * 400] * 400, "unfold to more than 100000 values"),
        ("text", None),
    ],
)
def test_what_a_tree_may_unfold_to(node, problem):
    assert tree_problem(node) is None if problem is None else problem in tree_problem(node)


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, ":".join(["59"] * 2000), "-" + "1" * 301])
@pytest.mark.parametrize("key", ["seed: ", "reward_class: {id: LengthMatch, args: {x: ", "? "])
def test_integers_that_no_key_can_hold(tmp_path, key, number):
    (tmp_path / "a.yaml").write_text(MINIMAL.replace("reward_class", "r") + key + number + "}" * key.count("{"))
    with pytest.raises(UserError, match="an integer of more than 300 digits") as error:
        load_config(tmp_path / "a.yaml")
    assert len(str(error.value)) < 400


HUGE = [
    *[
        (key, value)
        for key in ("rollout_batch_size", "episode_length", "env_num")
        for value in ("1e15", "1000001", 10**15)
    ],
    *[("pytorch_threads", value) for value in (100000, 1025, "1e9")],
    *[
        (key, "1e15")
        for key in ("max_new_tokens", "max_prompt_length", "context_size", "num_responses_per_prompt", "lora_r")
    ],
    *[(key, "1e15") for key in ("ppo_epoch", "num_mini_batch", "total_time_steps", "save_interval", "eval_episodes")],
    *[(key, 10**200) for key in ("per_device_microbatch_size", "keep_checkpoints", "sample_interval")],
    *[(key, 1e300) for key in ("reward_timeout_s", "grace_seconds")],
]


@pytest.mark.parametrize(("key", "value"), HUGE)
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


@pytest.mark.parametrize("key", ["run_dir", "model_path", "env.args.data_path", "experiment_name", "deepspeed_config"])
def test_text_with_a_nul(tmp_path, key):
    (tmp_path / "a.yaml").write_text(MINIMAL, encoding="utf-8")
    with pytest.raises(UserError, match=f"{key}: found .*, wanted text without NUL characters"):
        load_config(tmp_path / "a.yaml", {key: "a\0b"})


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
