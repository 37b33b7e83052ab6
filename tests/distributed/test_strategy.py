"""What a run makes of Accelerate's configuration, in the variables that accelerate sets for it, and what it refuses."""

import argparse
import json
import logging
import os

import pytest
import yaml
from accelerate.commands import launch
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed import strategy
from rlhf_dialog.distributed.deepspeed_config import asks_deepspeed, engine_settings, frozen_settings
from rlhf_dialog.distributed.strategy import FsdpSettings, fsdp_settings, settle
from rlhf_dialog.errors import UserError

CLASSES = {"env": {"args": {"data_path": "d"}}, "reward_class": {"id": "LengthMatch"}, "model_path": "m"}
DDP = {"distributed_type": "MULTI_GPU"}
WRAP = {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
FSDP = {"distributed_type": "FSDP", "mixed_precision": "no", "fsdp_config": WRAP}
ZERO = {"distributed_type": "DEEPSPEED", "mixed_precision": "no", "deepspeed_config": {"zero_stage": 2}}
PREFIXES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "MEGATRON_LM_", "WORLD_SIZE", "RANK", "LOCAL_RANK")


def fsdp(**answers) -> dict:
    return FSDP | {"fsdp_config": FSDP["fsdp_config"] | answers}


def zero(**answers) -> dict:
    return ZERO | {"deepspeed_config": ZERO["deepspeed_config"] | answers}


def config(**keys) -> Config:
    return Config.model_validate({**CLASSES, **keys})


@pytest.fixture
def launched(tmp_path, monkeypatch, caplog):
    """`launched(answers, key=value)`: the settled configuration of a run that `accelerate launch` has started with them."""
    caplog.set_level(logging.INFO)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)

    def variables(args: argparse.Namespace, prepare) -> None:
        made = prepare(args)
        for name, value in (made if isinstance(made, dict) else made[1]).items():
            monkeypatch.setenv(name, value)

    def start(answers: dict, **keys) -> Config:
        base = {"compute_environment": "LOCAL_MACHINE", "num_processes": 2, "num_machines": 1, "main_process_port": 0}
        (tmp_path / "accelerate.yaml").write_text(yaml.safe_dump(base | answers))
        launchers = {
            "simple_launcher": prepare_simple_launcher_cmd_env,
            "multi_gpu_launcher": prepare_multi_gpu_env,
            "deepspeed_launcher": prepare_deepspeed_cmd_env,
        }
        for name, prepare in launchers.items():
            monkeypatch.setattr(launch, name, lambda args, prepare=prepare: variables(args, prepare))
        launch.launch_command(launch.launch_command_parser().parse_args(["--config_file", "accelerate.yaml", "t.py"]))
        strategy.log_once.cache_clear()
        return settle(config(**keys))

    return start


def test_without_a_launcher_nothing_is_decided(launched, caplog):
    made = settle(config())
    assert made == config()
    assert (asks_deepspeed(made), fsdp_settings(made), caplog.text) == (False, None, "")
    assert fsdp_settings(config(use_fsdp=True)) == FsdpSettings("use_fsdp: true")


ONE = {"distributed_type": "NO", "num_processes": 1}


@pytest.mark.parametrize(
    ("answers", "keys", "decided"),
    [
        (DDP | {"mixed_precision": "no"}, {"precision": "bf16"}, {}),
        (DDP | {"mixed_precision": "bf16"}, {}, {"precision": "bf16"}),
        (DDP | {"mixed_precision": "fp16"}, {}, {"precision": "fp16"}),
        (DDP | {"mixed_precision": "bf16"}, {"use_deepspeed": True}, {}),  # the weights are in bf16
        (ONE | {"mixed_precision": "no", "use_cpu": True}, {}, {"device": "cpu"}),
        (FSDP | {"mixed_precision": "bf16"}, {"use_lora": True}, {"use_fsdp": True, "precision": "bf16"}),
        (fsdp(fsdp_activation_checkpointing=True), {}, {"use_fsdp": True, "activation_checkpointing": True}),
        (ZERO | {"mixed_precision": "bf16"}, {}, {"use_deepspeed": True}),
    ],
)
def test_what_the_launcher_decides_is_set_and_told_once(launched, caplog, answers, keys, decided):
    made = launched(answers, **keys)
    assert made == config(**keys, **decided)
    told = [record.message for record in caplog.records if record.message.startswith("from accelerate's configuration")]
    assert len(told) == bool(decided)
    before = caplog.text
    assert (settle(made), caplog.text) == (config(**keys, **decided), before)


def test_the_settings_of_fsdp2(launched):
    assert fsdp_settings(launched(FSDP)) == FsdpSettings("accelerate launch")
    answers = {"fsdp_transformer_layer_cls_to_wrap": "GPT2Block,LlamaDecoderLayer", "fsdp_offload_params": True}
    settings = fsdp_settings(launched(fsdp(**answers, fsdp_reshard_after_forward=False)))
    assert settings == FsdpSettings("accelerate launch", ("GPT2Block", "LlamaDecoderLayer"), False, True)


FILE = {"deepspeed_config": {"deepspeed_config_file": "mine.json"}}


@pytest.mark.parametrize(
    ("answers", "keys", "settings"),
    [
        (ZERO, {}, (2, "fp32", False, False)),
        (DDP | {"mixed_precision": "bf16"}, {"use_deepspeed": True}, (2, "bf16", False, False)),
        (zero(zero_stage=3, offload_optimizer_device="cpu", offload_param_device="cpu"), {}, (3, "fp32", True, True)),
        (ZERO | {"mixed_precision": "fp16"}, {"use_fp16": True}, (2, "fp16", False, False)),
        (ZERO | FILE | {"mixed_precision": "bf16"}, {}, (1, "bf16", False, False)),  # where the file leaves it open
        (ZERO | FILE, {"deepspeed_config": "zero3_offload.json"}, (3, "fp32", True, True)),
    ],
)
def test_the_engine_is_that_of_the_yaml_else_of_accelerates_file_else_of_its_answers(
    launched, tmp_path, answers, keys, settings
):
    (tmp_path / "mine.json").write_text(json.dumps({"zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}}))
    (tmp_path / "ds_configs").mkdir()  # accelerate reads its file in the working directory
    (tmp_path / "ds_configs/mine.json").write_text('{"zero_optimization": {"stage": 1}}')
    found = engine_settings(launched(answers, device="cpu", **keys))
    assert (found.stage, found.precision, found.offload_optimizer, found.offload_param) == settings


@pytest.mark.parametrize(
    ("answers", "keys", "words"),
    [
        (fsdp(fsdp_version=1), {}, ("fsdp_version: 1", "set it to 2")),
        (fsdp(fsdp_reshard_after_forward="SHARD_GRAD_OP"), {}, ("FSDP_RESHARD_AFTER_FORWARD", "shard_grad_op")),
        (FSDP | {"mixed_precision": "fp16"}, {}, ("fp16", "FSDP2")),
        (FSDP | {"parallelism_config": {"parallelism_config_tp_size": 2}}, {}, ("parallelism_config",)),
        ({"distributed_type": "MEGATRON_LM"}, {}, ("Megatron-LM", "not supported")),
        (DDP | {"mixed_precision": "bf16"}, {"precision": "fp32"}, ("mixed_precision: bf16", "precision fp32")),
        (ONE | {"mixed_precision": "no", "use_cpu": True}, {"device": "cuda"}, ("use_cpu: true", "device: cuda")),
        (ZERO, {"use_lora": True}, ("accelerate", "use_lora", "not supported with use_deepspeed")),
        (ZERO, {"use_fsdp": True}, ("FSDP2 and DeepSpeed",)),
        (FSDP, {"model_class": {"id": "mine"}}, ("model_class", "use_fsdp")),
        (zero(zero_stage="two"), {}, ("stage", "two")),
        (zero(offload_optimizer_device="nvme"), {}, ("offload_optimizer", "nvme")),
        (zero(offload_param_device="cpu"), {}, ("offload_param", "stage 3")),
    ],
)
def test_what_a_run_cannot_do_is_refused_by_name(launched, answers, keys, words):
    with pytest.raises(UserError) as caught:
        engine_settings(launched(answers, **keys))
    assert all(word in str(caught.value) for word in words)


def test_answers_about_a_strategy_that_nobody_asked_for_do_not_count(launched, monkeypatch):
    for name, value in {"FSDP_VERSION": "1", "ACCELERATE_DEEPSPEED_CONFIG_FILE": "gone.json"}.items():
        monkeypatch.setenv(name, value)
    made = settle(config(use_deepspeed=True))
    assert engine_settings(made).stage == 2
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")  # what `accelerate config` writes for no answer
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert engine_settings(made).stage == 2
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", "gone.json")
    with pytest.raises(UserError, match=r"gone\.json"):
        engine_settings(made)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    with pytest.raises(UserError, match=r"mixed_precision: fp8 is not supported"):
        settle(made)


def test_frozen_models_are_not_partitioned_beside_fsdp2(launched, tmp_path):
    (tmp_path / "whole.json").write_text('{"zero_optimization": {"stage": 0}}')
    (tmp_path / "parts.json").write_text('{"zero_optimization": {"stage": 3}}')
    key = "ref_ds_config"
    assert frozen_settings(launched(FSDP, **{key: "whole.json"}), key).stage == 0
    for name in ("parts.json", "default"):
        with pytest.raises(UserError, match=f"{key}: .*not supported with FSDP2"):
            frozen_settings(launched(FSDP, **{key: name}), key)
