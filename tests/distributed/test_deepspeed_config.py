"""What the DeepSpeed keys and JSON files mean, and what of them is refused; no engine is made here."""

import json
import logging
import re

import pytest

from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.loading import load_config, replace_keys
from rlhf_dialog.distributed.deepspeed_config import (
    FrozenSettings,
    asks_deepspeed,
    engine_document,
    engine_settings,
    frozen_settings,
    read_engine_file,
)
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
        asks = {"use_deepspeed": True, "ref_ds_config": path.name}
        assert frozen_settings(config(args=asks), "ref_ds_config") == FrozenSettings(0, True)
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
    assert settings(AUTO, **keys, use_fp16=True).precision == "fp16"
    shipped = engine_settings(config(deepspeed_config="zero3.json", **keys))
    assert shipped.precision == expected


def test_where_a_file_is_looked_for(tmp_path, monkeypatch):
    """Beside the YAML, in ds_configs/, in the working directory, then among the shipped ones."""
    monkeypatch.chdir(tmp_path)
    for folder in ("beside", "ds_configs"):
        (tmp_path / folder).mkdir()
    found = [read_engine_file("zero1.json", tmp_path / "beside", "k")[0]]
    for folder in (".", "ds_configs", "beside"):
        (tmp_path / folder / "zero1.json").write_text("{}")
        found.append(read_engine_file("zero1.json", tmp_path / "beside", "k")[0])
    wanted = [ROOT / "ds_configs/zero1.json", "zero1.json", "ds_configs/zero1.json", tmp_path / "beside/zero1.json"]
    assert found == list(map(str, wanted))
    (tmp_path / "beside/ppo.yaml").write_text(
        "model_path: m\nenv: {args: {data_path: d}}\nreward_class: {id: LengthMatch}\ndeepspeed_config: zero1.json\n"
    )
    loaded = load_config(tmp_path / "beside/ppo.yaml")
    assert replace_keys(loaded, {"seed": 3}).source_folder == loaded.source_folder == tmp_path / "beside"


@pytest.mark.parametrize(
    ("document", "keys", "words"),
    [
        ("{", {}, ("mine.json",)),
        ("[1]", {}, ("mine.json", "object")),
        ({"zero_optimization": 2}, {}, ("zero_optimization",)),
        ({"zero_optimization": {"stage": 4}}, {}, ("stage", "4")),
        ({"zero_optimization": {"stage": 0}}, {}, ("stage", "0", "use_deepspeed")),
        ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, {}, ("offload_param", "stage 3")),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, {}, ("offload_param", "nvme")),
        ({"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}, {"use_fp16": True}, ("fp16", "bf16")),
    ],
)
def test_what_cannot_be_is_refused(settings, document, keys, words):
    with pytest.raises(UserError) as caught:
        settings(document, **keys)
    assert all(word in str(caught.value) for word in words)


def test_keys_and_blocks(settings):
    found = engine_settings(config())
    assert (found.stage, found.precision, found.offload_optimizer) == (2, "fp32", False)
    for open_ in ({}, {"zero_optimization": {"stage": "auto"}}):
        assert settings(open_).document == {"zero_optimization": {"stage": 2}}
    found = settings({"zero_optimization": {"stage": 3}}, use_offload=True, use_fp16=True)
    assert (found.offload_optimizer, found.offload_param, found.precision) == (True, True, "fp16")
    found = settings({"zero_optimization": {"stage": 2}, "fp16": {"enabled": False, "loss_scale_window": 100}})
    assert found.precision == "fp32"
    found = settings({"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}, use_amp=False)
    assert found.document["bf16"] == {"check_grad_overflow": True, "enabled": True}
    assert not settings({"zero_optimization": {"stage": 2}}, use_offload=True).offload_param


@pytest.mark.parametrize(("world_size", "rows", "sizes"), [(1, 16, (8, 8, 1)), (2, 2, (8, 2, 2)), (3, 1, (9, 1, 3))])
def test_sizes_are_counted_in_responses_and_what_has_no_effect_is_told(settings, world_size, rows, sizes, caplog):
    """32 responses are 8 a minibatch: of two processes 4 each, of three 11 responses, of which 3 a minibatch."""
    caplog.set_level(logging.INFO)
    keys = config(per_device_microbatch_size=rows, num_mini_batch=4, precision="fp32")
    optimizer = {"optimizer": {"type": "Adam"}, "scheduler": {"type": "WarmupLR"}}
    file = {"train_batch_size": 160, "gradient_clipping": 1.0, "bf16": {"enabled": True}}
    document = engine_document(keys, settings(file | optimizer), batch_plan(keys, world_size), world_size)
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    assert tuple(document[name] for name in names) == (*sizes, 10.0)
    assert not {*optimizer} & set(document)
    told = ("optimizer", "scheduler", "gradient_clipping 1.0 -> 10.0", "160 -> ", "precision fp32 is not used")
    assert all(word in caplog.text for word in told)


FROZEN = ("ref_ds_config", "intent_ds_config")


def in_composites(args: dict) -> dict:
    """An NLPReward with these arguments in two composites, each time behind another part."""
    reward = {"id": "NLPReward", "args": {"intent_coef": 0, **args}}
    for _ in range(2):
        reward = {"id": "CompositeReward", "args": {"parts": [{"id": "LengthMatch"}, reward]}}
    return reward


@pytest.mark.parametrize("key", FROZEN)
@pytest.mark.parametrize("zero", [None, {"stage": 3}, {"offload_param": {"device": "cpu"}}])
def test_frozen_models_are_where_the_key_or_a_reward_says(tmp_path, key, zero):
    """`None`: a reward that wants DeepSpeed and names no file, which is `default`."""
    (tmp_path / "mine.json").write_text(json.dumps({"zero_optimization": zero, "train_batch_size": 32}))
    where = {} if zero is None else {key: "mine.json"}
    wanted = (0, True) if zero is None else (zero.get("stage", 0), "offload_param" in zero)
    asks = {"use_deepspeed": True, **where}
    plain = {"reward_class": {"id": "LengthMatch"}, **(where or {key: "default"})}
    for keys in ({"reward_class": in_composites(asks)}, {"args": asks}, plain):
        made = config(tmp_path, **({"use_deepspeed": False} | keys))
        found = frozen_settings(made, key)
        assert ((found.stage, found.offload), asks_deepspeed(made)) == (wanted, True)
    made = config(tmp_path, use_deepspeed=False, reward_class=in_composites(asks | {"use_deepspeed": False}))
    assert (frozen_settings(made, key), asks_deepspeed(made)) == (None, False)


def test_frozen_models_that_cannot_be_are_refused(tmp_path):
    key = "intent_ds_config"
    (tmp_path / "mine.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    with pytest.raises(UserError, match=f"{key}: .*stage is 2"):
        frozen_settings(config(tmp_path, **{key: "mine.json"}), key)
    reward = in_composites({"use_deepspeed": True, key: "gone.json"})
    with pytest.raises(UserError, match=re.escape(f"reward_class.args.parts.1.args.parts.1.args.{key}: 'gone.json'")):
        frozen_settings(config(tmp_path, reward_class=reward), key)
    with pytest.raises(UserError, match=r"args\.use_deepspeed: 'yes'"):
        build_reward("CompositeReward", {"parts": [in_composites({"use_deepspeed": "yes", "meteor_wordnet": "off"})]})


def test_the_reference_is_partitioned_as_the_policy_is(tmp_path):
    """zero3.json alone: with a whole reference, 8 billion parameters on 8 GPUs need 87 GiB in place of 61."""
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    (tmp_path / "zero3.json").write_text(json.dumps({"zero_optimization": zero}))
    (tmp_path / "whole.json").write_text('{"zero_optimization": {"stage": 0}}')
    keys = {"deepspeed_config": "zero3.json", "reward_class": {"id": "LengthMatch"}}
    for key, more, expected in (
        ("ref_ds_config", {}, FrozenSettings(3, False)),
        ("ref_ds_config", {"use_offload": True}, FrozenSettings(3, True)),
        ("ref_ds_config", {"ref_ds_config": "whole.json"}, FrozenSettings(0, False)),
        ("ref_ds_config", {"deepspeed_config": None}, None),  # stage 2
        ("ref_ds_config", {"use_deepspeed": False}, None),
        ("intent_ds_config", {}, None),
    ):
        assert frozen_settings(config(tmp_path, **keys | more), key) == expected, more


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
