"""What a user gets wrong in a configuration: one message with these words. `commands/test_refusals.py` has the command line."""

import os
import sys

import pytest

import rlhf_dialog.metrics
import rlhf_dialog.rewards  # noqa: F401  so that ids and arguments are checked
from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.loading import find_config, load_config, override, read_overrides
from rlhf_dialog.config.problems import walk
from rlhf_dialog.config.schema import Config
from rlhf_dialog.config.synonyms import HINTS, NO_EFFECT, hint
from rlhf_dialog.errors import UserError
from tests.parts.yaml_files import SMALL, message

KEYS = [  # lines of a YAML, in place of those of the same keys: words of the one problem
    ("env: {args: {data_path: d, data_pth: e}}", "env.args.data_pth", "did you mean 'env.args.data_path'"),
    ("env: {args: {data_path: d}, arg: 1}", "env.arg: unknown key"),
    ("env: {args: {data_path: d, lr: 1}}", "env.args.lr", "did you mean 'lr'"),
    ("data_path: d", "data_path: unknown key", "did you mean 'env.args.data_path'"),
    ("hub_token: x", "hub_token: unknown key", "environment"),
    ("env: {args: {}}", "env.args.data_path: missing"),
    ("env: {args: [data_path]}", "env.args: found ['data_path']"),
    ("reward_class: LengthMatch", "reward_class: found 'LengthMatch'"),
    ("reward_class: {id: LengthMatch, arg: 3}", "reward_class.arg: unknown key"),
    ("reward_class: {id: LengthMatch, args: {scale: 3}}", "reward_class", "LengthMatch", "scale"),
    ("reward_class: {id: LengthMatch, args: {kl_coef: 0.3}}", "kl_coef"),  # only NLPReward's are moved
    ("reward_class: {id: Meteor, args: {meteor_wordnt: off}}", "did you mean 'meteor_wordnet'", "It takes Meteor("),
    ("reward_class: {id: LengthMach}", "LengthMach", "did you mean 'LengthMatch'", "NLPReward"),
    ("vec_info_class: {id: NLPInfo}", "NLPInfo", "did you mean 'NLPVecInfo'"),
    ("lr: true", "lr: found True", "a number"),
    ("lr: .inf", "lr: found inf", "finite"),
    ("save_interval: often", "save_interval: found 'often'", "integer", "'auto'"),
    ("per_device_microbatch_size: true", "per_device_microbatch_size: found True", "a number"),
    ("ppo_epoch: 2.5", "ppo_epoch: found 2.5"),
    ("clip_param: 1.0e+300", "clip_param: found 1e+300"),
    ("stop_token_ids: [3, true]", "stop_token_ids.1: found True"),
    (r'model_path: "a\0b"', "model_path: found", "NUL"),
    (r'env: {args: {data_path: "\0"}}', "env.args.data_path: found", "NUL"),
    (r'reward_class: {id: Meteor, args: {meteor_wordnet: "\0"}}', "reward_class.args: found", "NUL"),
    (r'experiment_name: "\e[2J"', r"experiment_name: found '\x1b[2J'"),
    ("advantage_estimator: gpro", "advantage_estimator: found 'gpro'", "'reinforce_pp'", "did you mean 'grpo'"),
    ("advantage_estimator: rloo\nnum_responses_per_prompt: 1", "num_responses_per_prompt", "at least 2", "1"),
    ("advantage_estimator: grpo\nrollout_batch_size: 6", "rollout_batch_size", "6", "multiple of 4"),
    ("advantage_estimator: grpo\nwhiten_rewards: true", "whiten_rewards", "grpo"),
    ("advantage_estimator: rloo\ncredit: turn", "credit", "rloo"),
    ("resample_flat_groups: 2", "resample_flat_groups", "num_responses_per_prompt"),
    (
        "resample_flat_groups: 2\nenvironment: {id: restaurant}\nnum_responses_per_prompt: 2",
        "resample_flat_groups",
        "environment",
    ),
    ("policy_loss: cipso", "policy_loss: found 'cipso'", "did you mean 'cispo'"),
    ("policy_loss: cispo\ndual_clip_ppo: true", "policy_loss: cispo", "dual_clip_ppo"),
    ("policy_loss: cispo\nratio: sequence\nadvantage_estimator: grpo", "ratio: sequence", "cispo"),
    ("ratio: sequence", "ratio: sequence", "gae"),
    ("ratio: sequence\nadvantage_estimator: rloo\ndual_clip_ppo: true", "ratio: sequence", "dual_clip_ppo"),
    ("loss_average: length\nenvironment: {id: restaurant}", "loss_average: length", "response"),
    ("group_std: false\nadvantage_estimator: rloo", "group_std", "rloo"),
    ("truncation_penalty: 1\noverlong_penalty_tokens: 20\nmax_new_tokens: 20", "overlong_penalty_tokens", "(20)"),
    ("overlong_penalty_tokens: 3", "overlong_penalty_tokens", "truncation_penalty"),
    ("total_episodes: 9\nmax_iterations: 2", "total_episodes: 9", "max_iterations: 2"),
    ("total_episodes: 9\ntotal_time_steps: 500", "total_episodes: 9", "total_time_steps: 500"),
    ("kl_estimator: k3\nkl_in: loss", "kl_estimator", "kl_in"),
    ("use_deepspeed: true\nkl_in: loss", "kl_in", "use_deepspeed"),
    ("use_deepspeed: true\nuse_lora: true", "use_lora", "use_deepspeed"),
    ("load_in_4bit: true", "load_in_4bit", "use_lora: true"),
    ("load_in_4bit: true\nuse_lora: true\nuse_fsdp: true", "load_in_4bit", "use_fsdp"),
    ("load_in_4bit: true\nuse_lora: true\nuse_deepspeed: true", "load_in_4bit", "use_deepspeed"),
    ("load_in_4bit: true\nuse_lora: true\nengine: {urls: ['http://127.0.0.1:1']}", "load_in_4bit", "another base"),
    ("use_deepspeed: true\nprecision: fp16", "precision", "use_deepspeed"),
    ("use_deepspeed: true\nuse_amp: true\namp_dtype: fp16", "amp_dtype", "use_deepspeed"),
    ("reference: false", "reference", "kl_coef: 0", "0.2"),
    ("reference: false\nkl_coef: 0\nref_model: m", "reference", "ref_model: m"),
    ("reference: false\nkl_coef: 0\nkl_in: loss", "reference", "kl_in: loss"),
    ("guard: {action: stop, judge: {id: LengthMatch}}", "guard", "eval_interval"),
    ("use_share_model: true\ncritic_path: m", "critic_path", "use_share_model"),
    ("use_lora: true\ncritic_path: m", "critic_path", "only a separate critic"),
    ("advantage_estimator: rloo\ncritic_path: m", "critic_path", "only a separate critic"),
    ("advantage_estimator: rloo\ncritic_warmup: 3", "critic_warmup", "use_share_model"),
    ("use_lora: true\ncritic_warmup: 3", "critic_warmup", "use_lora"),
    ("use_share_model: true\nuse_deepspeed: true\ncritic_warmup: 3", "critic_warmup", "use_deepspeed"),
    ("precision: fp32\nuse_amp: true", "precision: fp32", "use_amp: true"),
    ("precision: bf16\nuse_amp: false\namp_dtype: fp16", "precision: bf16", "use_amp: false", "amp_dtype: fp16"),
]


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("learning_rate", "; did you mean 'lr'?"),
        ("response_length", "; did you mean 'max_new_tokens'?"),
        ("dataset_name", "; did you mean 'env.args.data_path'?"),
        ("clip_parm", "; did you mean 'clip_param'?"),
        ("xyzzy", ""),
    ],
)
def test_a_name_of_another_library_wins_over_the_nearest_name(write, key, advice):
    assert message(write(f"{SMALL}{key}: 1\n")).endswith(f"\n  {key}: unknown key{advice}")
    keys = {name for name, _ in walk(Config)}
    assert (set(HINTS.values()) <= keys, set(HINTS) & {*keys, *NO_EFFECT}) == (True, set())
    assert hint("learning_rate", ["learning_rat"]) == ""  # of a command with other keys


@pytest.mark.parametrize("row", KEYS, ids=lambda row: row[0][:60])
def test_one_mistake_is_told_with_its_dotted_key(write, row):
    text, *words = row
    changed = {line.split(":")[0] for line in text.splitlines()}
    kept = [line for line in SMALL.splitlines() if line.split(":")[0] not in changed]
    said = message(write("\n".join([*kept, text]) + "\n"))
    assert "1 problem\n" in said
    assert [word for word in words if word not in said] == [], said


def test_every_mistake_at_once_with_key_value_and_nearest_name(write):
    wrong = {
        "learning_rate": 1,
        "gama": 0.9,
        "clip_param": -1,
        "ppo_epoch": "three",
        "kl_coef": ".nan",
        "device": "tpu",
    }
    said = message(write(SMALL + "".join(f"{key}: {value}\n" for key, value in wrong.items())))
    first, *lines = said.splitlines()
    assert "run.yaml: 6 problems" in first
    told = {line.strip().split(":")[0]: line for line in lines}
    assert set(told) == set(wrong)
    for key, words in {
        "gama": ["did you mean 'gamma'"],
        "clip_param": ["-1", "greater than 0"],
        "ppo_epoch": ["'three'"],
        "kl_coef": ["finite"],
        "device": ["'tpu'", "auto", "cpu", "cuda"],
    }.items():
        assert all(word in told[key] for word in words), told[key]
    said = message(write(SMALL), {"lr": -1, "env.args.data_pat": 1})  # of the command line
    assert all(word in said for word in ("2 problems", "lr: found -1", "env.args.data_pat"))


def test_missing_keys_say_what_they_are(write):
    for text in ("", "# only a comment\n", "---\n"):
        first, *lines = message(write(text)).splitlines()
        assert "3 problems" in first
        assert sorted(line.strip().split(":")[0] for line in lines) == ["env", "model_path", "reward_class"]
    assert any("causal language model" in line for line in lines)


def test_a_key_of_a_mapping_that_is_no_text_is_a_mistake_too(write):
    for text in ("reward_class: {id: LengthMatch, args: {1: 2}}", "env: {args: {data_path: d}, 3: 4}", "5: 6"):
        lines = [line for line in SMALL.splitlines() if not text.startswith(line.split(":")[0])]
        message(write("\n".join([*lines, text])))


FILES = [  # a file: words of the message, beside the name of the file
    ("lr: 1\nseed: 2\nlr: 3\n", "'lr'", "twice", "line 3"),
    ("env:\n  args: {data_path: a, data_path: b}\n", "'data_path'", "twice", "line 2"),
    ("a: [1, 2\nb: 3\n", "YAML", "line 2"),
    ("lr: !!python/object:os.system x\n", "YAML", "line 1"),
    ("when: 2026-99-99\n", "YAML"),
    ("- lr\n- seed\n", "mapping", "list"),
    ("just a sentence\n", "mapping", "str"),
    ("globals:\n  base: ./models\nmodel_path: '{{ base }}'\n", "globals"),
    (b"\x80\x81\x00\xff" * 40, "cannot be read"),
    (b"\x00\x01\x02", "YAML"),
]


@pytest.mark.parametrize("row", FILES, ids=lambda row: str(row[0])[:30])
def test_a_file_that_is_no_mapping_is_told_with_its_line(write, row):
    path = write(row[0])
    said = message(path)
    assert [word for word in (str(path), *row[1:]) if word not in said] == [], said


def test_what_is_no_file(tmp_path, monkeypatch):
    for path in (tmp_path, tmp_path / "absent.yaml"):
        assert "cannot be read" in message(path)
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(UserError, match=r"pipe\.yaml' is not a regular file"):
        find_config(str(tmp_path / "pipe.yaml"))
    (tmp_path / "configs").mkdir()
    for name in ("nlp_ppo.yaml", "mine.yaml", "notes.txt"):
        (tmp_path / "configs" / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "nowhere/train_ppo.py")])
    with pytest.raises(UserError) as error:
        find_config("nlp_poo.yaml")
    assert [word in str(error.value) for word in ("'nlp_ppo.yaml'", "mine.yaml", "notes.txt")] == [True, True, False]
    assert str(error.value).count("nlp_ppo.yaml") == 1  # as the nearest name, not in the list of the own files


@pytest.mark.parametrize("name", [".x.yaml", "a\x1b[2J.yaml", "a\nb.yaml"])
def test_the_name_of_a_file_that_is_not_the_name_of_a_run(write, name):
    assert "--experiment_name" in message(write(SMALL, name))
    assert load_config(write(SMALL, name), {"experiment_name": "x"}).experiment_name == "x"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("parts.2.weight", ["--parts.2.weight", "'2'", "list of 2"]),
        ("parts.first", ["'first'", "list of 2"]),
        ("parts.0.id.x", ["'id'", "'A'"]),
        ("lr.x", ["'lr'", "0.5"]),
    ],
)
def test_an_override_of_what_is_not_there(key, words):
    with pytest.raises(UserError) as error:
        override({"parts": [{"id": "A"}, {"id": "B"}], "lr": 0.5}, key, 1)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("words", [["nlp_ppo.yaml"], ["-x", "1"], ["--a", "1", "b"], ["--"], ["--a", "{b: ["]])
def test_arguments_that_cannot_be_read(words):
    with pytest.raises(UserError):
        read_overrides(words)


def test_batches_that_cannot_be(write):
    text = "episode_length: 1000000\nenv_num: 2\nmax_new_tokens: 1"
    with pytest.raises(UserError, match=r"2000000 responses .* 1000000 .*rollout_batch_size"):
        batch_plan(load_config(write(SMALL + text)))
    with pytest.raises(UserError, match=r"2 prompts .* 3 processes.*rollout_batch_size: 3"):
        batch_plan(load_config(write(SMALL + "rollout_batch_size: 2")), 3)
