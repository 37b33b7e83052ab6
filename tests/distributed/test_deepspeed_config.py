"""What the DeepSpeed keys and JSON files mean, and what of them is refused; no engine is made here."""

import json
import logging
import re
from pathlib import Path

import pytest

from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.loading import load_config, replace_keys
from rlhf_dialog.distributed.deepspeed_config import (
    asks_deepspeed,
    engine_document,
    engine_settings,
    frozen_settings,
    read_engine_file,
)
from rlhf_dialog.distributed.world import World
from rlhf_dialog.distributed.zero_checkpoint import refuse_another_partitioning
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import build_reward
from tests.parts.processes import ROOT
from tests.parts.zero_files import config


@pytest.fixture
def settings(tmp_path):
    """`settings({...JSON...}, key=value)`: the engine of a configuration with that file."""

    def make(document, **keys):
        text = document if isinstance(document, str) else json.dumps(document)
        (tmp_path / "mine.json").write_text(text)
        return engine_settings(config(tmp_path, deepspeed_config="mine.json", **keys))

    return make


def test_comments_and_auto(settings):
    found = settings(
        """{ # the document's own comments
        "train_batch_size": 32, # train_batch_size = episode_length * env_num / num_mini_batch
        "train_micro_batch_size_per_gpu": "auto",
        "tag": "a # that is text \\" # too",
        "zero_optimization": {"stage": 1, "reduce_bucket_size": "auto"}}"""
    )
    assert (found.stage, found.precision, found.half) == (1, "fp32", False)
    text = 'a # that is text " # too'
    assert found.document == {"train_batch_size": 32, "tag": text, "zero_optimization": {"stage": 1}}


@pytest.mark.parametrize("path", sorted((ROOT / "ds_configs").glob("*.json")), ids=lambda path: path.name)
def test_shipped_files_mean_what_their_names_say(path):
    if path.name == "eval_ds_config.json":
        frozen = frozen_settings(config(args={"use_deepspeed": True, "ref_ds_config": path.name}), "ref_ds_config")
        assert (frozen.stage, frozen.offload) == (0, True)
        return
    found = engine_settings(config(deepspeed_config=path.name))
    stages = {"ds_config.json": 2, "zero1.json": 1, "zero3.json": 3, "zero3_offload.json": 3}
    assert found.stage == stages[path.name]
    assert (found.offload_optimizer, found.offload_param) == (("offload" in path.name,) * 2)
    assert path.read_text(encoding="utf-8").count('"auto"') == 3 + path.name.startswith("zero3")


AUTO = {"zero_optimization": {"stage": 3}, "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}


@pytest.mark.parametrize(
    ("on_gpu", "keys", "expected"),
    [
        (True, {}, "bf16"),
        (False, {}, "fp32"),
        (False, {"precision": "bf16"}, "bf16"),
        (True, {"use_amp": False}, "fp32"),
    ],
)
def test_a_block_that_is_auto_is_on_where_it_is_the_runs_precision(settings, monkeypatch, on_gpu, keys, expected):
    monkeypatch.setattr("torch.cuda.is_available", lambda: on_gpu)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda **_: True)
    keys = {"device": "auto", **keys}
    found = settings(AUTO, **keys)
    assert found.precision == expected
    assert "fp16" not in found.document
    assert ("bf16" in found.document) == (expected == "bf16")
    assert settings(AUTO | {"zero_optimization": {"stage": 0}}, **keys).precision == "fp32"  # autocast
    assert settings(AUTO, **keys, use_fp16=True).precision == "fp16"
    shipped = engine_settings(config(deepspeed_config="zero3.json", **keys))
    assert shipped.precision == expected


def test_where_a_file_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside").mkdir()
    ours = Path(read_engine_file("zero1.json", tmp_path / "beside", "k")[0])
    assert ours == ROOT / "ds_configs/zero1.json"
    (tmp_path / "zero1.json").write_text("{}")
    assert read_engine_file("zero1.json", tmp_path / "beside", "k")[0] == "zero1.json"
    (tmp_path / "ds_configs").mkdir()
    (tmp_path / "ds_configs/zero1.json").write_text("{}")
    assert read_engine_file("zero1.json", tmp_path / "beside", "k")[0] == "ds_configs/zero1.json"
    (tmp_path / "beside/zero1.json").write_text("{}")
    assert read_engine_file("zero1.json", tmp_path / "beside", "k") == (str(tmp_path / "beside/zero1.json"), {})
    with pytest.raises(UserError, match=r"deepspeed_config: 'zero9.json' not found; looked in .*beside, ds_configs"):
        read_engine_file("zero9.json", tmp_path / "beside", "deepspeed_config")
    (tmp_path / "beside/ppo.yaml").write_text(
        "model_path: m\nenv: {args: {data_path: d}}\nreward_class: {id: LengthMatch}\ndeepspeed_config: zero1.json\n"
    )
    loaded = load_config(tmp_path / "beside/ppo.yaml")
    assert replace_keys(loaded, {"seed": 3}).folder == loaded.folder == tmp_path / "beside"


def test_the_default_is_stage_2():
    found = engine_settings(config())
    assert (found.stage, found.precision, found.offload_optimizer) == (2, "fp32", False)
    assert "stage 2" in found.source


@pytest.mark.parametrize(
    ("document", "keys", "words"),
    [
        ("{", {}, "mine.json is not valid JSON"),
        ("[1]", {}, "must hold a JSON object"),
        ({"zero_optimization": 2}, {}, "zero_optimization must be a block"),
        ({"zero_optimization": {"stage": 4}}, {}, "stage is 4; it must be 0, 1, 2 or 3"),
        ({"zero_optimization": {"stage": True}}, {}, "stage is True"),
        ({}, {"use_offload": True}, "needs ZeRO stage 1, 2 or 3"),
        (
            {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
            {},
            "needs at least ZeRO stage 3, not 2",
        ),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, {}, "nvme is not supported"),
        ({"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}, {"use_fp16": True}, "fp16 and bf16"),
        ({"bf16": {"enabled": True}}, {}, "bf16 with ZeRO stage 0"),
    ],
)
def test_what_cannot_be_is_refused(settings, document, keys, words):
    with pytest.raises(UserError, match=words):
        settings(document, **keys)


def test_keys_and_blocks(settings):
    found = settings({"zero_optimization": {"stage": 3}}, use_offload=True, use_fp16=True)
    assert (found.offload_optimizer, found.offload_param, found.precision) == (True, True, "fp16")
    found = settings({"zero_optimization": {"stage": 2}, "fp16": {"enabled": False, "loss_scale_window": 100}})
    assert found.precision == "fp32"
    found = settings({"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}, use_amp=False)
    assert found.document["bf16"] == {"check_grad_overflow": True, "enabled": True}


def test_an_optimizer_and_a_scheduler_of_the_file_are_told(settings, caplog):
    caplog.set_level(logging.INFO)
    found = settings({"optimizer": {"type": "Adam"}, "scheduler": {"type": "WarmupLR"}, "gradient_clipping": 1.0})
    document = engine_document(config(), found, batch_plan(config()), 1)
    assert not {"optimizer", "scheduler"} & set(document)
    assert "optimizer is not used, because lr, critic_lr" in caplog.text
    assert "gradient_clipping 1.0 -> 10.0" in caplog.text


@pytest.mark.parametrize(("world_size", "rows"), [(1, 16), (2, 2), (3, 1)])
def test_sizes_are_counted_in_responses(settings, world_size, rows, caplog):
    caplog.set_level(logging.INFO)
    keys = config(per_device_microbatch_size=rows, num_mini_batch=4)  # 32 responses, 8 a minibatch
    found = settings({"train_batch_size": 160, "train_micro_batch_size_per_gpu": 16}, num_mini_batch=4)
    document = engine_document(keys, found, batch_plan(keys, world_size), world_size)
    micro, rounds = document["train_micro_batch_size_per_gpu"], document["gradient_accumulation_steps"]
    assert document["train_batch_size"] == micro * rounds * world_size
    assert micro <= rows
    assert micro * rounds * world_size >= 8
    assert caplog.text.count("replaced, because batch sizes are counted in responses") == 1


def test_the_identity_of_the_document_is_checked_in_tokens(settings):
    document = {"train_batch_size": 32, "zero_optimization": {"stage": 2}}
    for keys in ({}, {"num_mini_batch": 7, "rollout_batch_size": 14}):  # 128 * 5 / 20
        assert settings(document, **keys).document["train_batch_size"] == 32
    words = r"train_batch_size 32 is not episode_length 128 \* env_num 5 / num_mini_batch 10 = 64 tokens; use"
    with pytest.raises(UserError, match=words):
        settings(document, num_mini_batch=10)
    with pytest.raises(UserError, match=r'num_mini_batch 7 = 91\.4286 tokens; use "auto"'):
        settings(document, num_mini_batch=7)


@pytest.mark.parametrize("key", ["ref_ds_config", "intent_ds_config"])
def test_frozen_models(tmp_path, key):
    def frozen(document=None, **more):
        (tmp_path / "eval.json").write_text(json.dumps(document or {}))
        args = {"use_deepspeed": True, **({} if document is None else {key: "eval.json"}), **more}
        return frozen_settings(config(tmp_path, args), key)

    assert frozen(use_deepspeed=False) is None
    assert (frozen().stage, frozen().offload) == (0, True)  # "default"
    assert (frozen({"train_batch_size": 32}).stage, frozen({"fp16": {}}).offload) == (0, False)
    assert frozen({"zero_optimization": {"stage": 3}}).stage == 3
    for stage in (1, 2, "two"):
        with pytest.raises(UserError, match=f"{key}: .*stage is {stage!r}, but a frozen model has no optimizer state"):
            frozen({"zero_optimization": {"stage": stage}})


def nested(depth: int, args: dict) -> dict:
    """An NLPReward with these arguments in so many composites, each time behind another part."""
    reward = {"id": "NLPReward", "args": {"intent_coef": 0, **args}}
    for _ in range(depth):
        reward = {"id": "CompositeReward", "args": {"parts": [{"id": "LengthMatch"}, reward]}}
    return reward


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("key", ["ref_ds_config", "intent_ds_config"])
def test_frozen_models_as_a_reward_inside_of_composites_wants_them(tmp_path, key, depth):
    (tmp_path / "eval.json").write_text('{"zero_optimization": {"stage": 3}}')
    where = "reward_class" + ".args.parts.1" * depth + f".args.{key}"

    def frozen(args, **keys):
        made = config(tmp_path, use_deepspeed=False, reward_class=nested(depth, args), **keys)
        return made, frozen_settings(made, key)

    made, found = frozen({"use_deepspeed": True, key: "eval.json"})
    assert (found.stage, asks_deepspeed(made)) == (3, True)
    assert (frozen({"use_deepspeed": True})[1].stage, frozen({"use_deepspeed": True})[1].offload) == (0, True)
    made, found = frozen({"use_deepspeed": False, key: "eval.json"})
    assert (found, asks_deepspeed(made)) == (None, False)
    assert frozen({"use_deepspeed": True}, **{key: "eval.json"})[1].stage == 3  # only one says which
    with pytest.raises(UserError, match=re.escape(f"{where}: 'gone.json' not found")):
        frozen({"use_deepspeed": True, key: "gone.json"})
    with pytest.raises(UserError, match=re.escape(f"{key}: 'default' here, but 'eval.json' in {where}; keep one")):
        frozen({"use_deepspeed": True, key: "eval.json"}, **{key: "default"})


@pytest.mark.parametrize("key", ["ref_ds_config", "intent_ds_config"])
def test_frozen_models_with_any_reward(key):
    made = config(use_deepspeed=False, reward_class={"id": "LengthMatch"}, **{key: "eval_ds_config.json"})
    assert (frozen_settings(made, key).offload, asks_deepspeed(made)) == (True, True)


def test_use_deepspeed_of_a_reward_is_true_or_false():
    with pytest.raises(UserError, match=r"parts\[0\]\.args\.use_deepspeed: 'yes' must be true or false"):
        build_reward("CompositeReward", {"parts": [nested(0, {"use_deepspeed": "yes", "meteor_wordnet": "off"})]})


def test_the_reference_is_partitioned_as_the_policy_is(tmp_path):
    """zero3.json alone: with a whole reference, 8 billion parameters on 8 GPUs need 87 GiB in place of 61."""
    (tmp_path / "zero3.json").write_text(
        json.dumps({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})
    )
    keys = {"deepspeed_config": "zero3.json", "reward_class": {"id": "LengthMatch"}}
    found = frozen_settings(config(tmp_path, **keys), "ref_ds_config")
    assert (found.stage, found.offload) == (3, False)
    assert frozen_settings(config(tmp_path, **keys, use_offload=True), "ref_ds_config").offload
    assert frozen_settings(config(tmp_path, **keys), "intent_ds_config") is None
    assert frozen_settings(config(tmp_path, **keys | {"deepspeed_config": None}), "ref_ds_config") is None  # stage 2
    assert frozen_settings(config(tmp_path, **keys, use_deepspeed=False), "ref_ds_config") is None
    (tmp_path / "whole.json").write_text('{"zero_optimization": {"stage": 0}}')
    asked = frozen_settings(config(tmp_path, **keys, ref_ds_config="whole.json"), "ref_ds_config")
    assert (asked.stage, asked.offload) == (0, False)


def test_a_reference_that_is_the_policy_is_not_placed_apart(tmp_path):
    """With LoRA the reference is the policy without its adapter: partitioned or offloaded, it would take the policy along."""
    (tmp_path / "frozen.json").write_text('{"zero_optimization": {"stage": 3}}')
    keys = {"use_deepspeed": False, "use_lora": True, "reward_class": {"id": "LengthMatch"}}
    for name in ("frozen.json", "default"):
        for more in ({}, {"ref_model": "m"}):
            made = config(tmp_path, **keys, **more, ref_ds_config=name)
            assert frozen_settings(made, "ref_ds_config") is None
            assert not asks_deepspeed(made)
        other = config(tmp_path, **keys, ref_model="another", ref_ds_config=name)
        assert frozen_settings(other, "ref_ds_config") is not None
        assert asks_deepspeed(other)
    inside = config(tmp_path, {"use_deepspeed": True}, use_deepspeed=False, use_lora=True)
    assert frozen_settings(inside, "intent_ds_config").offload  # the models of the reward are others


def test_a_checkpoint_of_another_sharing_is_refused(tmp_path):
    zero = {"policy": {"stage": 2, "world_size": 4, "precision": "bf16", "scaler": {}}}
    refuse_another_partitioning(tmp_path, {}, {}, World())
    with pytest.raises(UserError, match="ZeRO stage 2 in bf16 on 4 processes, but this run has no ZeRO"):
        refuse_another_partitioning(tmp_path, {"zero": zero}, {}, World())
