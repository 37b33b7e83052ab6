"""YAML and command line -> Config: what loads, in which order, and what every mistake is told. Values stand here by hand."""

import logging
import os
import re
import sys
from pathlib import Path

import pytest
import yaml

import rlhf_dialog
import rlhf_dialog.metrics
import rlhf_dialog.rewards
from rlhf_dialog.config.loading import (
    dump_yaml,
    find_config,
    load_config,
    load_settings,
    override,
    override_all,
    parse_arguments,
    read_yaml,
    shipped_folder,
)
from rlhf_dialog.config.schema import Config
from rlhf_dialog.config.settings import DataKeys
from rlhf_dialog.errors import UserError
from tests.parts.processes import ROOT
from tests.parts.yaml_files import SMALL, message

SEEDS = ROOT.parent / "shared" / "seed_configs"

# The syntax that people bring along: flow mappings with comments and a trailing comma, uneven indents, 1e-6.
PLAIN = """
# a comment first
reward_class:
    id: NLPReward # which reward
    args: {
        # The classifier.
        "intent_model": someone/act-classifier,
        # The frozen language model.
        "ref_model": someone/gpt2-dialog,
    }

vec_info_class:
    id: "NLPVecInfo" # extra numbers
wandb_entity: my-team # a name
experiment_name: first_try
run_dir: ./elsewhere/ # with a slash at the end
log_interval: 3

model_path: someone/gpt2-dialog # name or path
use_share_model: true
ppo_epoch: 4
env: # what the prompts are made of
    args: {
        "tokenizer_path": gpt2, # tokenizer
        "data_path": daily_dialog # no comma here
    }
lr: 1e-6 # text to a YAML 1.1 reader
critic_lr: 2E-6
episode_length: 64
num_mini_batch: 10
seed: 7
use_amp: true
"""


def test_the_syntax_of_the_openrl_example_loads(write):
    config = load_config(write(PLAIN))
    assert (config.lr, config.critic_lr) == (0.000001, 0.000002)
    assert config.ref_model == config.model_path == "someone/gpt2-dialog"
    assert config.reward_class.model_dump() == {"id": "NLPReward", "args": {"intent_model": "someone/act-classifier"}}
    assert config.vec_info_class.model_dump() == {"id": "NLPVecInfo", "args": {}}
    assert config.env.model_dump() == {
        "args": {"tokenizer_path": "gpt2", "data_path": "daily_dialog", "columns": {}, "split": {}}
    }
    assert (config.wandb_entity, config.use_wandb, config.run_dir) == ("my-team", False, "./elsewhere/")
    assert (config.experiment_name, config.log_interval, config.ppo_epoch) == ("first_try", 3, 4)
    assert (config.episode_length, config.num_mini_batch, config.seed) == (64, 10, 7)
    assert config.use_share_model is config.use_amp is True


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the document's own configurations are not here")
def test_the_documents_own_files_load_unchanged():
    config = load_config(SEEDS / "nlp_ppo.yaml")
    assert config.model_path == config.ref_model == "rajkumarrrk/gpt2-fine-tuned-on-daily-dialog"
    assert config.reward_class.args == {"intent_model": "rajkumarrrk/roberta-daily-dialog-intent-classifier"}
    assert (config.env.args.tokenizer_path, config.env.args.data_path) == ("gpt2", "daily_dialog")
    assert (config.lr, config.critic_lr, config.episode_length) == (1e-6, 1e-6, 128)
    assert (config.num_mini_batch, config.seed, config.ppo_epoch) == (20, 0, 5)
    assert (config.experiment_name, config.run_dir, config.wandb_entity) == ("train_nlp", "./run_results/", "openrl")
    assert config.use_share_model is config.use_amp is True
    assert config.use_wandb is False
    engine = load_config(SEEDS / "nlp_ppo_ds.yaml")
    assert engine.use_deepspeed
    assert engine.deepspeed_config == "ds_config.json"
    assert engine.experiment_name == "nlp_ppo_ds"


# what is wrong, and what is said


def test_every_mistake_at_once_with_key_value_and_nearest_name(write):
    said = message(
        write(
            SMALL + "learning_rate: 1\ngama: 0.9\nclip_param: -1\nppo_epoch: three\nuse_amp: 7\n"
            "kl_coef: .nan\ntop_p: 1.5\nseed: 4294967296\ndevice: tpu\n"
        )
    )
    assert "9 problems" in said.splitlines()[0]
    assert "run.yaml" in said.splitlines()[0]
    lines = {line.strip().split(":")[0]: line for line in said.splitlines()[1:]}
    wrong = {"learning_rate", "gama", "clip_param", "ppo_epoch", "use_amp", "kl_coef", "top_p", "seed", "device"}
    assert set(lines) == wrong
    assert "did you mean 'gamma'" in lines["gama"]
    assert "-1" in lines["clip_param"]
    assert "greater than 0" in lines["clip_param"]
    assert "'three'" in lines["ppo_epoch"]
    assert "finite" in lines["kl_coef"]
    assert "1.5" in lines["top_p"]
    assert "'tpu'" in lines["device"]
    assert all(name in lines["device"] for name in ("auto", "cpu", "cuda"))


def test_missing_keys_say_what_they_are(write):
    said = message(write("lr: 1.0\n"))
    lines = [line.strip() for line in said.splitlines()[1:]]
    assert sorted(line.split(":")[0] for line in lines) == ["env", "model_path", "reward_class"]
    assert any("causal language model" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("env: {args: {data_path: d, data_pth: e}}", ["env.args.data_pth", "did you mean 'env.args.data_path'"]),
        ("env: {args: {data_path: d}, arg: 1}", ["env.arg: unknown key"]),
        ("env: {args: {data_path: d, lr: 1}}", ["env.args.lr", "did you mean 'lr'"]),
        ("data_path: d", ["data_path: unknown key", "did you mean 'env.args.data_path'"]),
        ("env: {args: {}}", ["env.args.data_path: missing"]),
        ("env: {args: [data_path]}", ["env.args: found ['data_path']"]),
        ("reward_class: LengthMatch", ["reward_class: found 'LengthMatch'"]),
        ("reward_class: {id: LengthMatch, arg: 3}", ["reward_class.arg: unknown key"]),
        ("reward_class: {id: LengthMatch, args: {scale: 3}}", ["reward_class", "LengthMatch", "scale"]),
        ("reward_class: {id: LengthMach}", ["LengthMach", "did you mean 'LengthMatch'", "Known", "NLPReward"]),
        ("vec_info_class: {id: NLPInfo}", ["NLPInfo", "did you mean 'NLPVecInfo'"]),
        ("lr: true", ["lr: found True", "a number"]),
        ("lr: [1.0e-6]", ["lr: found [1e-06]"]),
        ("ppo_epoch: 2.5", ["ppo_epoch: found 2.5"]),
        ("use_amp: maybe", ["use_amp: found 'maybe'"]),
        ("lr: .inf", ["lr: found inf", "finite"]),
        ("lr: 1e999", ["lr", "finite"]),
        ("lr: 0", ["lr: found 0", "greater than 0"]),
        ("gamma: 1.01", ["gamma: found 1.01"]),
        ("clip_param: 1.0e+300", ["clip_param: found 1e+300", "less than or equal to 1000000"]),
        ("ppo_epoch: 10001", ["ppo_epoch: found 10001", "less than or equal to 10000"]),
        ("max_prompt_length: 1", ["max_prompt_length: found 1"]),
        ("turn_separator: ''", ["turn_separator: found ''"]),
        ("advantage_estimator: ppo", ["advantage_estimator: found 'ppo'", "grpo"]),
        ("advantage_estimator: rloo\nnum_responses_per_prompt: 1", ["num_responses_per_prompt", "at least 2", "1"]),
        ("advantage_estimator: grpo\nrollout_batch_size: 6", ["rollout_batch_size", "6", "multiple of 4"]),
    ],
)
def test_one_mistake_is_told_with_its_dotted_key(write, text, words):
    changed = {line.split(":")[0] for line in text.splitlines()}
    kept = [line for line in SMALL.splitlines() if line.split(":")[0] not in changed]
    said = message(write("\n".join([*kept, text]) + "\n"))
    assert "1 problem\n" in said
    assert all(word in said for word in words), said


def test_a_key_of_a_mapping_that_is_no_text_is_a_mistake_too(write):
    for text in ("reward_class: {id: LengthMatch, args: {1: 2}}", "env: {args: {data_path: d}, 3: 4}", "5: 6"):
        lines = [line for line in SMALL.splitlines() if not text.startswith(line.split(":")[0])]
        message(write("\n".join([*lines, text])))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr: 1\nseed: 2\nlr: 3\n", ["'lr'", "twice", "line 3"]),
        ("env:\n  args: {data_path: a, data_path: b}\n", ["'data_path'", "twice", "line 2"]),
        ("a: [1, 2\nb: 3\n", ["not valid YAML", "line 2"]),
        ("\tlr: 1\n", ["not valid YAML", "line 1"]),
        ('lr: "1\n', ["not valid YAML", "line 2"]),
        ("lr: !!python/object:os.system x\n", ["not valid YAML", "line 1"]),
        ("lr: *nobody\n", ["not valid YAML", "line 1"]),
        ("- lr\n- seed\n", ["mapping", "list"]),
        ("just a sentence\n", ["mapping", "str"]),
        ("globals:\n  base: ./models\nmodel_path: '{{ base }}'\n", ["globals", "Jinja", "not supported"]),
        (b"\x80\x81\x00\xff" * 40, ["cannot be read"]),
        (b"\x00\x01\x02", ["not valid YAML"]),
    ],
)
def test_a_file_that_is_no_mapping_is_told_with_its_line(write, text, words):
    path = write(text)
    said = message(path)
    assert str(path) in said
    assert "Traceback" not in said
    assert all(word in said for word in words), said


def test_an_empty_file_misses_what_every_file_needs(write):
    for text in ("", "# only a comment\n", "---\n", "\n\n"):
        assert "3 problems" in message(write(text))


def test_a_folder_and_an_absent_file_cannot_be_read(tmp_path):
    for path in (tmp_path, tmp_path / "absent.yaml"):
        assert "cannot be read" in message(path)


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(write):
    assert load_config(write(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())).model_path == "m"


# KL keys of NLPReward


def nlp(args: str, top: str = "") -> str:
    return f"model_path: m\nenv: {{args: {{data_path: d}}}}\nreward_class: {{id: NLPReward, args: {args}}}\n{top}"


def test_the_same_kl_value_in_both_places_is_fine_and_another_is_a_mistake(write):
    args = "{intent_coef: 0, kl_coef: 0.3, ref_model: r}"
    assert load_config(write(nlp(args, "kl_coef: 0.3\nref_model: r\n"))).kl_coef == 0.3
    said = message(write(nlp(args, "kl_coef: 0.2\nref_model: s\nlr: 0\n")))
    assert "3 problems" in said
    assert re.search(r"kl_coef: .*0\.2.*0\.3.*reward_class\.args\.kl_coef", said)
    assert re.search(r"ref_model: .*'s'.*'r'", said)


def test_kl_arguments_of_other_rewards_stay_where_they_are(write):
    text = "model_path: m\nenv: {args: {data_path: d}}\nreward_class: {id: LengthMatch, args: {kl_coef: 0.3}}\n"
    assert "kl_coef" in message(write(text))


def inside(depth: int, reward: str) -> str:
    """The reward in so many composites, each time behind another part."""
    for _ in range(depth):
        reward = f"{{id: CompositeReward, args: {{parts: [{{id: LengthMatch}}, {reward}]}}}}"
    return f"model_path: m\nenv: {{args: {{data_path: d}}}}\nreward_class: {reward}\n"


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_kl_arguments_of_an_nlpreward_in_composites_become_the_top_level_keys(write, depth):
    args = "{intent_coef: 0, ref_model: r, kl_coef: 0.3, kl_target: 0.7, kl_rate: 0.4, kl_clip: 0.5}"
    config = load_config(write(inside(depth, f"{{id: NLPReward, args: {args}}}")))
    assert (config.ref_model, config.kl_coef, config.kl_target) == ("r", 0.3, 0.7)
    assert (config.kl_rate, config.kl_clip) == (0.4, 0.5)
    node = config.reward_class.model_dump()
    for _ in range(depth):
        node = node["args"]["parts"][1]
    assert node == {"id": "NLPReward", "args": {"intent_coef": 0}}


@pytest.mark.parametrize("depth", [1, 3])
def test_two_kl_values_are_a_mistake_that_names_both_keys(write, depth):
    """At the top level and inside; in two parts of a composite."""
    reward = "{id: NLPReward, args: {intent_coef: 0, kl_coef: 0.3}}"
    where = "reward_class" + ".args.parts.1" * depth
    said = message(write(inside(depth, reward) + "kl_coef: 0.2\n"))
    assert f"kl_coef: found 0.2, but 0.3 in {where}.args.kl_coef; remove one of them" in said
    other = "{id: NLPReward, args: {intent_coef: 0, kl_coef: 0.4}}"
    pair = f"{{id: CompositeReward, args: {{parts: [{other}, {reward}]}}}}"
    said = message(write(inside(depth - 1, pair)))
    first = where[:-1] + "0"
    assert "1 problem\n" in said
    assert f"{first}.args.kl_coef: found 0.4, but 0.3 in {where}.args.kl_coef; remove one of them" in said


def test_a_wrong_kl_argument_inside_a_composite_is_a_mistake(write):
    assert "kl_coef: found -1" in message(write(inside(2, "{id: NLPReward, args: {intent_coef: 0, kl_coef: -1}}")))


def test_an_alias_outside_of_the_reward_keeps_its_kl_keys(write):
    text = (
        "model_path: m\nenv: {args: {data_path: d}}\nreward_class: {id: NLPReward, args: &a {kl_coef: 0.3, intent_coef: 0}}\n"
        "vec_info_class: {id: NLPVecInfo, args: *a}\n"
    )
    assert "vec_info_class: wrong arguments for NLPVecInfo: got an unexpected keyword argument 'kl_coef'" in message(
        write(text)
    )


# order and overrides


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(write):
    path = write(SMALL + "lr: 0.5\nseed: 3\n")
    config = load_config(path, {"seed": 4, "env.args.data_path": "other", "gamma": "0.5"})
    assert (config.lr, config.seed, config.gamma, config.gae_lambda) == (0.5, 4, 0.5, 0.95)
    assert config.env.args.data_path == "other"
    assert read_yaml(path)["seed"] == 3


def test_overrides_reach_into_lists_and_make_missing_mappings():
    raw = {"reward_class": {"args": {"parts": [{"id": "A"}, {"id": "B", "weight": 1}]}}, "env": None}
    override(raw, "reward_class.args.parts.1.weight", 0.25)
    override(raw, "reward_class.args.parts.0", {"id": "C"})
    override(raw, "env.args.data_path", "x")
    assert raw == {
        "reward_class": {"args": {"parts": [{"id": "C"}, {"id": "B", "weight": 0.25}]}},
        "env": {"args": {"data_path": "x"}},
    }


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("parts.2.weight", ["--parts.2.weight", "'2'", "list of 2"]),
        ("parts.-1", ["'-1'", "list of 2"]),
        ("parts.first", ["'first'", "list of 2"]),
        ("parts.0.id.x", ["'id'", "'A'"]),
        ("lr.x", ["'lr'", "0.5"]),
    ],
)
def test_an_override_of_what_is_not_there_says_so(key, words):
    with pytest.raises(UserError) as error:
        override({"parts": [{"id": "A"}, {"id": "B"}], "lr": 0.5}, key, 1)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_faulty_override_is_told_like_a_faulty_file(write):
    said = message(write(SMALL), {"lr": -1, "env.args.data_pat": 1})
    assert "2 problems" in said
    assert "lr: found -1" in said
    assert "env.args.data_pat" in said


def test_arguments():
    config, overrides, flags = parse_arguments(
        [
            *("--config", "a.yaml", "--lr", "1e-4", "--env.args.data_path=./x=y", "--use_amp", "--overwrite"),
            *("--local-rank=0", "--reward_class.args", "{intent_coef: 0, parts: [1, 2]}", "--kl_coef", "-1"),
            *("--seed=3", "--ref_model", "null", "--run-dir", "my runs", "--device", "cpu"),
        ],
        {"overwrite", "help"},
    )
    assert (config, flags) == ("a.yaml", {"overwrite"})
    assert float(overrides.pop("lr")) == 1e-4
    assert overrides == {
        "env.args.data_path": "./x=y",
        "use_amp": True,
        "local_rank": 0,
        "reward_class.args": {"intent_coef": 0, "parts": [1, 2]},
        "kl_coef": -1,
        "seed": 3,
        "ref_model": None,
        "run_dir": "my runs",
        "device": "cpu",
    }
    assert parse_arguments([], set()) == (None, {}, set())
    assert parse_arguments(["--config=b.yaml"], set())[0] == "b.yaml"


def test_a_key_without_a_value_is_true_and_a_value_that_is_no_yaml_is_text():
    _, overrides, flags = parse_arguments(
        ["--use_amp", "--model_path", "a: b: c", "--x", "@home", "--debug"], {"debug"}
    )
    assert overrides == {"use_amp": True, "model_path": "a: b: c", "x": "@home"}
    assert flags == {"debug"}


@pytest.mark.parametrize("words", [["nlp_ppo.yaml"], ["-x", "1"], ["--config", "a", "b"], ["--"], ["--a", "{b: ["]])
def test_arguments_that_cannot_be_read(words):
    with pytest.raises(UserError):
        parse_arguments(words, set())


# finding the file


def test_find_config_looks_here_then_in_configs_then_beside_the_script(tmp_path, monkeypatch):
    here, beside = tmp_path / "here", tmp_path / "beside"
    places = [here / "x.yaml", here / "configs" / "x.yaml", beside / "x.yaml", beside / "configs" / "x.yaml"]
    for path in places:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(here)
    for place in places:
        assert find_config("x.yaml", beside).resolve() == place.resolve()
        assert find_config(str(place), beside) == place
        place.unlink()
    with pytest.raises(UserError, match=r"'x\.yaml' not found"):
        find_config("x.yaml", beside)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
def test_find_config_takes_only_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(UserError, match=r"pipe\.yaml' is not a regular file but a device or a pipe"):
        find_config(str(tmp_path / "pipe.yaml"))


def test_find_config_lists_what_there_is_and_the_nearest_name(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    for name in ("nlp_ppo.yaml", "quickstart.yaml", "notes.txt"):
        (tmp_path / "configs" / name).touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        find_config("nlp_poo.yaml", tmp_path / "nowhere")
    assert "did you mean 'nlp_ppo.yaml'" in str(error.value)
    assert "quickstart.yaml" in str(error.value)
    assert "notes.txt" not in str(error.value)
    assert str(error.value).count("nlp_ppo.yaml") == 2  # as the nearest name and in one list: both folders have it


def test_find_config_uses_the_folder_of_the_running_script(tmp_path, monkeypatch):
    (tmp_path / "project" / "configs").mkdir(parents=True)
    (tmp_path / "project" / "configs" / "a.yaml").touch()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "project" / "train_ppo.py")])
    assert find_config("a.yaml") == tmp_path / "project" / "configs" / "a.yaml"


def test_what_the_program_brings_is_found_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = find_config("quickstart.yaml", tmp_path)
    assert found == shipped_folder("configs") / "quickstart.yaml"
    assert load_config(found).experiment_name == "quickstart"
    with pytest.raises(UserError, match=r"did you mean 'quickstart.yaml'\?.*the program ships .*nlp_ppo.yaml"):
        find_config("quikstart.yaml", tmp_path)
    (tmp_path / "quickstart.yaml").touch()
    assert find_config("quickstart.yaml") == Path("quickstart.yaml")


def test_an_installed_package_brings_its_files_inside_and_a_checkout_beside_it(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "rlhf_dialog"
    package.mkdir(parents=True)
    monkeypatch.setattr(rlhf_dialog, "__file__", str(package / "__init__.py"))
    assert shipped_folder("configs") == tmp_path / "site-packages" / "configs"
    (package / "configs").mkdir()
    assert shipped_folder("configs") == package / "configs"


# round trip, batch arithmetic, keys without effect


def test_the_dump_loads_again_and_is_the_same(write):
    config = load_config(write(PLAIN))
    config.turn_separator = " Ünï 🙂 #: "
    again = load_config(write(dump_yaml(config), "again.yaml"))
    assert again == config
    assert set(yaml.safe_load(dump_yaml(config))) == set(Config.model_fields)


def test_another_estimator_on_top_of_a_saved_configuration(write):
    """The file holds a number, which may be one that somebody chose: it stays where it fits, else the message says what to do."""
    saved = dump_yaml(load_config(write(SMALL)))
    said = message(write(saved), {"advantage_estimator": "grpo"})
    for words in ("1 problem", "num_responses_per_prompt: grpo", "at least 2, found 1", "to 4", "saved config.yaml"):
        assert words in said
    for value in (4, None):
        both = {"advantage_estimator": "grpo", "num_responses_per_prompt": value}
        assert load_config(write(saved), both).num_responses_per_prompt == 4
    grouped = dump_yaml(load_config(write(SMALL), {"advantage_estimator": "rloo"}))
    assert load_config(write(grouped), {"advantage_estimator": "gae"}).num_responses_per_prompt == 4
    assert load_config(write(SMALL), {"advantage_estimator": "grpo"}).num_responses_per_prompt == 4


def test_openrl_keys_without_effect_are_accepted_and_named(write, caplog):
    text = "hidden_size: 512\nuse_recurrent_policy: false\nmini_batch_size: 8\nuse_eval: true\n"
    with caplog.at_level(logging.INFO, "rlhf_dialog"):
        config = load_config(write(SMALL + text))
    for key in ("hidden_size", "use_recurrent_policy", "mini_batch_size", "use_eval"):
        assert re.search(rf"{key}: has no effect here; \w+", caplog.text)
        assert not hasattr(config, key)


def test_other_schemas_use_the_same_loader(write):
    found = load_settings(DataKeys, write("context_size: 3\n"), {"max_prompt_length": 9})
    assert (found.context_size, found.max_prompt_length, found.turn_separator) == (3, 9, "auto")
    with pytest.raises(
        UserError, match=r"arguments: 1 problem\n  context_sise: unknown key; did you mean 'context_size'"
    ):
        load_settings(DataKeys, None, {"context_sise": 3})


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"reward_class.id": "NoReward"}, {"id": "NoReward"}),  # the file's arguments are those of its own class
        ({"reward_class.id": "Meteor"}, {"id": "Meteor", "args": {"parts": [{"id": "A", "args": {"a": 1}}]}}),
        ({"reward_class.args.b": 2, "reward_class.id": "Other"}, {"id": "Other", "args": {"b": 2}}),  # in any order
        ({"reward_class.args.parts.0.id": "B"}, {"id": "Meteor", "args": {"parts": [{"id": "B"}]}}),
    ],
)
def test_another_id_drops_the_arguments_of_the_files_class(given, wanted):
    raw = {"reward_class": {"id": "Meteor", "args": {"parts": [{"id": "A", "args": {"a": 1}}]}}}
    override_all(raw, given)
    assert raw == {"reward_class": wanted}
