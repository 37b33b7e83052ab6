"""YAML and command line -> Config: what loads, in which order, and what every mistake is told. Values stand here by hand."""

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
    override,
    override_all,
    read_overrides,
    read_yaml,
    shipped_folder,
)
from rlhf_dialog.config.schema import Config
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
    assert (config.env.args.tokenizer_path, config.env.args.data_path) == ("gpt2", "daily_dialog")
    assert (config.wandb_entity, config.use_wandb, config.run_dir) == ("my-team", False, "./elsewhere/")
    assert (config.experiment_name, config.log_interval, config.ppo_epoch) == ("first_try", 3, 4)
    assert (config.episode_length, config.num_mini_batch, config.seed) == (64, 10, 7)
    assert config.use_share_model is config.use_amp is True


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the document's own configurations are not here")
def test_the_documents_own_files_load_unchanged():
    config = load_config(SEEDS / "nlp_ppo.yaml")
    assert config.model_path == config.ref_model == "rajkumarrrk/gpt2-fine-tuned-on-daily-dialog"
    assert config.reward_class.args == {"intent_model": "rajkumarrrk/roberta-daily-dialog-intent-classifier"}
    assert (config.experiment_name, config.run_dir, config.wandb_entity) == ("train_nlp", "./run_results/", "openrl")
    engine = load_config(SEEDS / "nlp_ppo_ds.yaml")
    assert (engine.use_deepspeed, engine.deepspeed_config) == (True, "ds_config.json")


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(write):
    assert load_config(write(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())).model_path == "m"


# KL keys of NLPReward


def inside(depth: int, reward: str) -> str:
    """The reward in so many composites, each time behind another part."""
    for _ in range(depth):
        reward = f"{{id: CompositeReward, args: {{parts: [{{id: LengthMatch}}, {reward}]}}}}"
    return f"model_path: m\nenv: {{args: {{data_path: d}}}}\nreward_class: {reward}\n"


@pytest.mark.parametrize("depth", [0, 2])
def test_the_kl_arguments_of_an_nlpreward_in_composites_become_the_top_level_keys(write, depth):
    args = "{intent_coef: 0, ref_model: r, kl_coef: 0.3, kl_target: 0.7, kl_rate: 0.4, kl_clip: 0.5}"
    config = load_config(write(inside(depth, f"{{id: NLPReward, args: {args}}}")))
    assert (config.ref_model, config.kl_coef, config.kl_target) == ("r", 0.3, 0.7)
    assert (config.kl_rate, config.kl_clip) == (0.4, 0.5)
    node = config.reward_class.model_dump()
    for _ in range(depth):
        node = node["args"]["parts"][1]
    assert node == {"id": "NLPReward", "args": {"intent_coef": 0}}


@pytest.mark.parametrize("depth", [0, 2])
def test_the_arguments_of_a_function_stay_its_own_and_loading_does_not_look_for_it(write, depth):
    config = load_config(write(inside(depth, "{id: 'absent.py:f', args: {kl_coef: 0.3}}")))
    node = config.reward_class.model_dump()
    for _ in range(depth):
        node = node["args"]["parts"][1]
    assert node == {"id": "absent.py:f", "args": {"kl_coef": 0.3}}
    assert config.kl_coef == 0.2


def test_two_kl_values_are_a_mistake_that_names_both_keys(write):
    reward, depth = "{id: NLPReward, args: {intent_coef: 0, kl_coef: 0.3}}", 2
    where = "reward_class" + ".args.parts.1" * depth
    said = message(write(inside(depth, reward) + "kl_coef: 0.2\n"))
    assert f"kl_coef: found 0.2, but 0.3 in {where}.args.kl_coef" in said
    assert load_config(write(inside(depth, reward) + "kl_coef: 0.3\n")).kl_coef == 0.3  # the same value is fine
    other = "{id: NLPReward, args: {intent_coef: 0, kl_coef: 0.4}}"
    pair = f"{{id: CompositeReward, args: {{parts: [{other}, {reward}]}}}}"
    said = message(write(inside(depth - 1, pair)))
    first = where[:-1] + "0"
    assert "1 problem\n" in said
    assert f"{first}.args.kl_coef: found 0.4, but 0.3 in {where}.args.kl_coef; remove one of them" in said


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


def test_arguments():
    overrides = read_overrides(
        [
            *("--lr", "1e-4", "--env.args.data_path=./x=y", "--use_amp", "--local-rank=0"),
            *(
                "--reward_class.args",
                "{intent_coef: 0, parts: [1, 2]}",
                "--kl_coef",
                "-1",
                "--seed=3",
                "--ref_model",
                "null",
            ),
            *("--run-dir", "my runs", "--model_path", "a: b: c", "--x", "@home"),
        ]
    )
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
        "model_path": "a: b: c",  # no YAML, so text
        "x": "@home",
    }
    assert read_overrides([]) == {}


# finding the file


def test_find_config_looks_here_then_in_configs_then_beside_the_script(tmp_path, monkeypatch):
    here, beside = tmp_path / "here", tmp_path / "beside"
    places = [here / "x.yaml", here / "configs" / "x.yaml", beside / "x.yaml", beside / "configs" / "x.yaml"]
    for path in places:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "argv", [str(beside / "train_ppo.py")])
    for place in places:
        assert find_config("x.yaml").resolve() == place.resolve()
        assert find_config(str(place)) == place
        place.unlink()
    with pytest.raises(UserError, match=r"'x\.yaml' not found"):
        find_config("x.yaml")


def test_what_the_program_brings_is_found_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train_ppo.py")])
    found = find_config("quickstart.yaml")
    assert found == shipped_folder("configs") / "quickstart.yaml"
    assert load_config(found).experiment_name == "quickstart"
    with pytest.raises(UserError, match=r"did you mean 'quickstart.yaml'\?.*the program ships .*configs"):
        find_config("quikstart.yaml")
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
    config = load_config(write(PLAIN), {"turn_separator": " Ünï 🙂 #: "})
    again = load_config(write(dump_yaml(config), "again.yaml"))
    assert again == config
    assert set(yaml.safe_load(dump_yaml(config))) == set(Config.model_fields)


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
