"""What a resumed run must share: every difference is told, and nothing that may differ counts."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rlhf_dialog.config.loading import replace_keys
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import CompositeReward
from rlhf_dialog.runs import identity
from rlhf_dialog.runs.verification import sha256_of
from tests.parts.judges import Halved, Judge, Words, inside, summed
from tests.parts.tiny import byte_tokenizer, chat_tokenizer, gpt2, llama
from tests.parts.trainers import PROMPTS, make_trainer, settings


def test_fingerprints_of_models(tmp_path):
    first = identity.model_fingerprint(gpt2())
    assert first.startswith("GPT2LMHeadModel, ")
    assert identity.model_fingerprint(gpt2()) == first
    with torch.no_grad():
        changed = gpt2()
        changed.transformer.h[1].mlp.c_fc.weight += 1e-3
    others = [gpt2(1), gpt2(n_layer=3), gpt2(layer_norm_epsilon=1e-3), llama(), changed]
    assert len({first, *map(identity.model_fingerprint, others)}) == 6
    gpt2().save_pretrained(tmp_path)  # where it was saved is no part of it
    assert identity.model_fingerprint(type(gpt2()).from_pretrained(tmp_path)) == first


def test_fingerprints_of_tokenizers():
    first = identity.tokenizer_fingerprint(byte_tokenizer())
    used = byte_tokenizer()
    used(["a", "longer text"], padding=True, truncation=True, max_length=3)
    assert identity.tokenizer_fingerprint(used) == first
    more = byte_tokenizer()
    more.add_tokens(["more"])
    other_pad = byte_tokenizer()
    other_pad.pad_token = "<eos>"
    others = [more, other_pad, chat_tokenizer(), chat_tokenizer(None), byte_tokenizer(separator_token=False)]
    assert len({first, *map(identity.tokenizer_fingerprint, others)}) == 6


def test_fingerprints_of_data():
    first = identity.data_fingerprint(PROMPTS)
    assert first.startswith("16 prompts, ")
    middle = [*PROMPTS[:7], replace(PROMPTS[7], reference="x"), *PROMPTS[8:]]
    acts = [replace(PROMPTS[0], act=2), *PROMPTS[1:]]
    others = [PROMPTS[:-1], PROMPTS[::-1], middle, acts]
    assert len({first, *map(identity.data_fingerprint, others)}) == 5


def test_the_parts_of_a_reward_tell_the_variant_of_meteor():
    meteor = {"id": "Meteor", "args": {"meteor_wordnet": "off"}}
    nested = CompositeReward([{"id": "LengthMatch"}, {"id": "CompositeReward", "args": {"parts": [meteor]}}])
    assert identity.part_names(nested) == ["length_match", "meteor_exact_stem"]
    assert identity.part_names(nested.weighted_parts["length_match"].reward) == ["length_match"]
    assert identity.part_names(summed(Words(), Halved(Words()))) == ["words", "halved", "words"]


def test_how_a_reward_is_asked_is_not_what_it_is():
    def args(**keys):
        remote = {"url": "http://127.0.0.1/score?key=secret", **keys}
        return {"id": "CompositeReward", "args": {"parts": [{"id": "RemoteReward", "args": remote}]}}

    plain = identity.essential(args())
    assert identity.essential(args(timeout_s=3, batch_size=2, token_env="X")) == plain
    assert "secret" not in json.dumps(plain)
    assert identity.essential(args(model="x")) != plain


def identity_with(**keys):
    trainer = make_trainer(**keys)
    return identity.identity_of(trainer.config, trainer.models, trainer.prompts, trainer.scorer.reward)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("top_k", 5, "top_k: 5 here, 0 in the checkpoint"),
        ("turn_separator", "<eos>", "turn_separator: '<eos>' here, '<EOU>' in the checkpoint"),
        ("rollout_batch_size", 4, "rollout_batch_size: 4 here, 6 in the checkpoint"),
        ("num_responses_per_prompt", 2, "num_responses_per_prompt: 2 here, 1 in the checkpoint"),
        ("use_valuenorm", False, "use_valuenorm: false here, true in the checkpoint"),
        ("env", {"args": {"data_path": "unused", "columns": {"prompt": "q"}}}, 'columns: {"prompt": "q"} here, {} in'),
        ("ref_seed", 1, "ref_model: 'GPT2LMHeadModel, "),
        ("reward_class", {"id": "LengthMatch"}, "reward_class: {"),
    ],
)
def test_another_run_is_refused_with_the_key(key, value, said):
    then, now = identity_with(), identity_with(**{key: value})
    with pytest.raises(UserError) as caught:
        identity.refuse_another_run(now, then, Path("runs/ppo/checkpoints/iter_000002"))
    message = str(caught.value)
    assert said in message
    assert message.count("in the checkpoint") == 1
    assert "--resume_weights_only runs/ppo --experiment_name" in message
    assert sha256_of(now) != sha256_of(then)


@pytest.mark.parametrize(
    "keys",
    [
        {"max_iterations": 3, "save_interval": 1, "eval_interval": 2, "run_dir": "/x", "per_device_microbatch_size": 2},
        {"rollout_batch_size": None, "episode_length": 6, "env_num": 5, "lr": 1e-5, "kl_coef": 0.1, "clip_param": 0.1},
    ],
)
def test_what_may_differ_is_not_refused(keys):
    then, now = identity_with(), identity_with(**keys)
    identity.refuse_another_run(now, then, Path("a/b/c"))
    assert sha256_of(now) == sha256_of(then)


def test_keys_that_one_version_does_not_know_are_not_compared():
    then = identity_with()
    del then["seed"]
    identity.refuse_another_run(identity_with(seed=5), {**then, "new": 1}, Path("a/b/c"))
    identity.refuse_another_run(identity_with(), "poison", Path("a/b/c"))


def test_changed_settings_are_named():
    then = json.loads(json.dumps(identity.settings_of(settings(lr=1e-3))))
    assert not {"disable_cuda", "disable_wandb"} & set(then)
    assert identity.changed_settings(settings(lr=1e-3, use_gae=False, disable_cuda=True), then) == [
        "use_gae true -> false"
    ]
    assert identity.changed_settings(settings(lr=1e-3, per_device_microbatch_size=2, max_iterations=4), then) == []
    changed = identity.changed_settings(settings(lr=1e-5, kl_coef=0.5), then)
    assert changed == [
        "lr 0.001 -> 1e-05",
        "kl_coef 0.2 -> 0.5 (no effect: the controller continues with the value of the checkpoint)",
    ]
    decay = identity.settings_of(settings(use_linear_lr_decay=True))
    assert identity.changed_settings(settings(use_linear_lr_decay=True, max_iterations=4), decay) == [
        "max_iterations null -> 4"
    ]


def test_the_identity_holds_the_models_of_a_reward():
    def identity_of(reward):
        trainer = make_trainer(reward)
        return identity.identity_of(trainer.config, trainer.models, trainer.prompts, trainer.scorer.reward)

    then = identity_of(inside(2, Judge()))
    assert list(then["reward models"]) == ["judge"]
    assert then["reward models"]["judge"].startswith("Linear, 2 parameters, ")
    identity.refuse_another_run(identity_of(inside(2, Judge())), then, Path("a/b/c"))
    with pytest.raises(UserError, match="reward models: "):
        identity.refuse_another_run(identity_of(inside(2, Judge(bias=1.0))), then, Path("a/b/c"))
    del then["reward models"]  # of an earlier version
    identity.refuse_another_run(identity_of(inside(2, Judge(bias=1.0))), then, Path("a/b/c"))


@pytest.mark.parametrize(
    ("keys", "settings_then", "kept"),
    [
        ({}, {"use_amp": False, "amp_dtype": "auto"}, {"use_amp": False}),  # strict float32, on a GPU too
        ({}, {"use_amp": True, "amp_dtype": "fp16"}, {"use_amp": True, "amp_dtype": "fp16"}),
        ({}, {}, {}),
        ({"precision": "bf16"}, {"use_amp": False}, {}),
        ({}, {"precision": "bf16", "use_amp": None, "amp_dtype": "auto"}, {"precision": "bf16"}),
    ],
)
def test_a_run_goes_on_in_its_precision_unless_the_user_asks_for_one(keys, settings_then, kept):
    config = settings(**keys)
    assert identity.begun_keys(config, {"settings": settings_then}) == kept
    replace_keys(config, kept)  # they are valid beside the others
    assert identity.begun_keys(settings(), {"settings": identity.settings_of(settings())}) == {}


def test_a_run_goes_on_with_its_separator_day_and_sizes_unless_the_user_names_others():
    before = {"turn_separator": "<EOU>", "date_string": "2026-05-01"}
    state, rows = {"identity": before, "part_sizes": {"asked": [32, 8], "rows": {}}}, "per_device_rollout_size"
    assert identity.begun_keys(settings(turn_separator="auto"), state) == {
        **before,
        "per_device_rollout_size": 32,
        "per_device_microbatch_size": 8,
    }
    named = settings(**{"turn_separator": "|", "date_string": "2026-05-02", rows: 5})
    assert identity.begun_keys(named, state) == {"per_device_microbatch_size": 8}
    assert identity.begun_keys(settings(turn_separator="auto"), {"identity": None}) == {}


@pytest.mark.parametrize("state", [{}, {"formulas": 1}, {"formulas": 3}])
def test_a_checkpoint_of_other_formulas_is_refused(state):
    with pytest.raises(UserError, match=r"iter_000002: was computed with other formulas .* --resume_weights_only"):
        identity.refuse_other_formulas(Path("iter_000002"), state)
    identity.refuse_other_formulas(Path("iter_000002"), identity.record(settings(), {}))  # of today


def test_a_rank_with_other_settings_or_another_model_is_refused():
    def ranks(**changes):
        return SimpleNamespace(gather=lambda value: [value, value | changes])

    identity.refuse_other_ranks(settings(), {"model": "a"}, ranks())
    for key, value, here in (("model", "b", "'a'"), ("eval_interval", 7, "0"), ("ledger", False, "true")):
        with pytest.raises(
            UserError, match=rf"rank 1 differs from rank 0; [^\n]+\n  {key}: {here} on rank 0, \S+ on rank 1$"
        ):
            identity.refuse_other_ranks(settings(), {"model": "a"}, ranks(**{key: value}))
