"""What a run does with the answers of `accelerate config`; the variables are those that accelerate sets for them."""

import json
import logging
import os
import subprocess
import sys

import pytest

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed import strategy
from rlhf_dialog.distributed.deepspeed_config import asks_deepspeed, engine_settings, frozen_settings
from rlhf_dialog.distributed.strategy import FsdpSettings, asks_fsdp, fsdp_settings, settle
from rlhf_dialog.errors import UserError
from tests.parts.launches import forget_launchers, launched_variables

CLASSES = {"env": {"args": {"data_path": "d"}}, "reward_class": {"id": "LengthMatch"}, "model_path": "m"}
FSDP = {
    "distributed_type": "FSDP",
    "mixed_precision": "no",
    "fsdp_config": {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_offload_params": False,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_activation_checkpointing": False,
    },
}
ZERO = {
    "distributed_type": "DEEPSPEED",
    "mixed_precision": "no",
    "deepspeed_config": {
        "zero_stage": 2,
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "gradient_accumulation_steps": 1,
        "zero3_init_flag": False,
    },
}


def with_answers(base: dict, block: str, **answers) -> dict:
    return base | {block: base[block] | answers}


def fsdp(**answers) -> dict:
    return with_answers(FSDP, "fsdp_config", **answers)


def zero(**answers) -> dict:
    return with_answers(ZERO, "deepspeed_config", **answers)


def config(**keys) -> Config:
    return Config.model_validate({**CLASSES, **keys})


@pytest.fixture
def launched(tmp_path, monkeypatch, caplog):
    """`launched(answers, *options, key=value)`: the settled configuration of a run that accelerate has launched with them."""
    caplog.set_level(logging.INFO)
    forget_launchers(monkeypatch)

    def launch(answers: dict, *options: str, **keys) -> Config:
        for name, value in launched_variables(tmp_path, answers, *options).items():
            monkeypatch.setenv(name, value)
        strategy.log_once.cache_clear()
        made = config(**keys)
        settle(made)
        return made

    return launch


def test_without_a_launcher_nothing_is_decided(launched, caplog):
    made = config()
    settle(made)
    assert made == config()
    assert (asks_fsdp(made), asks_deepspeed(made), fsdp_settings(made), caplog.text) == (False, False, None, "")
    assert fsdp_settings(config(use_fsdp=True)) == FsdpSettings("use_fsdp: true")


@pytest.mark.parametrize(
    ("answers", "options", "keys", "decided"),
    [
        ({"distributed_type": "MULTI_GPU", "mixed_precision": "no"}, (), {}, {}),
        ({"distributed_type": "MULTI_GPU", "mixed_precision": "no"}, (), {"precision": "bf16"}, {}),
        ({"distributed_type": "MULTI_GPU", "mixed_precision": "bf16"}, (), {}, {"precision": "bf16"}),
        ({"distributed_type": "MULTI_GPU", "mixed_precision": "bf16"}, (), {"use_amp": True}, {}),
        ({"distributed_type": "MULTI_GPU", "mixed_precision": "fp16"}, (), {}, {"precision": "fp16"}),
        ({"distributed_type": "NO", "num_processes": 1}, ("--mixed_precision", "fp16"), {}, {"precision": "fp16"}),
        ({"distributed_type": "NO", "num_processes": 1, "use_cpu": True}, (), {}, {"device": "cpu"}),
        (FSDP, (), {}, {"use_fsdp": True}),
        (FSDP | {"mixed_precision": "bf16"}, (), {"use_lora": True}, {"use_fsdp": True, "precision": "bf16"}),
        (
            fsdp(fsdp_activation_checkpointing=True),
            (),
            {},
            {"use_fsdp": True, "activation_checkpointing": True},
        ),
        (ZERO, (), {}, {"use_deepspeed": True}),
        (ZERO | {"mixed_precision": "bf16"}, (), {}, {"use_deepspeed": True}),  # the weights are in bf16
        ({"distributed_type": "MULTI_GPU", "mixed_precision": "bf16"}, (), {"use_deepspeed": True}, {}),  # here too
    ],
)
def test_what_the_launcher_decides_is_set_and_told_once(launched, caplog, answers, options, keys, decided):
    made = launched(answers, *options, **keys)
    assert made == config(**keys, **decided)
    line = ", ".join(f"{key}: {str(value).lower()}" for key, value in decided.items())
    lines = [record.message for record in caplog.records if record.message.startswith("from ")]
    assert sorted(", ".join(lines).replace("from accelerate's configuration: ", "")) == sorted(line)
    before = caplog.text
    settle(made)  # as the check of a run and the run itself do
    assert (made, caplog.text) == (config(**keys, **decided), before)


@pytest.mark.parametrize(
    ("answers", "settings"),
    [
        ({}, FsdpSettings("accelerate launch")),
        ({"fsdp_transformer_layer_cls_to_wrap": "GPT2Block,LlamaDecoderLayer"}, ("GPT2Block", "LlamaDecoderLayer")),
        ({"fsdp_transformer_layer_cls_to_wrap": ["GPT2Block"]}, ("GPT2Block",)),
        (
            {"fsdp_reshard_after_forward": False, "fsdp_offload_params": True},
            FsdpSettings("accelerate launch", (), False, True),
        ),
    ],
)
def test_the_settings_of_fsdp2(launched, answers, settings):
    found = fsdp_settings(launched(fsdp(**answers)))
    assert (found.wrap if isinstance(settings, tuple) else found) == settings


def test_a_run_that_was_launched_is_recorded_so_that_it_can_be_launched_again(launched, tmp_path):
    first = launched(FSDP | {"mixed_precision": "bf16"})
    again = Config.model_validate(first.model_dump())
    settle(again)
    assert again == first


# -- DeepSpeed


@pytest.mark.parametrize(
    ("answers", "keys", "settings"),
    [
        (ZERO, {}, (2, "fp32", False, False)),
        (
            {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16"},
            {"use_deepspeed": True},
            (2, "bf16", False, False),
        ),
        (zero(zero_stage=1), {}, (1, "fp32", False, False)),
        (zero(zero_stage=3) | {"mixed_precision": "bf16"}, {}, (3, "bf16", False, False)),
        (zero(zero_stage=3, offload_optimizer_device="cpu", offload_param_device="cpu"), {}, (3, "fp32", True, True)),
        (ZERO | {"mixed_precision": "fp16"}, {}, (2, "fp16", False, False)),
        (ZERO | {"mixed_precision": "fp16"}, {"use_fp16": True}, (2, "fp16", False, False)),
        (zero(zero_stage=3), {"deepspeed_config": "mine.json"}, (3, "bf16", False, True)),
        (zero(zero_stage=3) | {"mixed_precision": "bf16"}, {"deepspeed_config": "mine.json"}, (3, "bf16", False, True)),
    ],
)
def test_the_engine_that_accelerate_config_asks_for(launched, tmp_path, monkeypatch, answers, keys, settings):
    monkeypatch.chdir(tmp_path)
    document = {"zero_optimization": {"stage": "auto", "offload_param": {"device": "cpu"}}, "bf16": {"enabled": True}}
    (tmp_path / "mine.json").write_text(json.dumps(document))
    if keys.get("deepspeed_config"):
        del (answers := with_answers(answers, "deepspeed_config"))["deepspeed_config"]["offload_param_device"]
    found = engine_settings(launched(answers, **keys))
    assert (found.stage, found.precision, found.offload_optimizer, found.offload_param) == settings
    assert found.source.endswith("accelerate's configuration") == ("zero_stage" in answers.get("deepspeed_config", {}))


@pytest.mark.parametrize("enabled", ["auto", None])
def test_the_16_bit_block_of_a_json_takes_what_the_launcher_says(launched, tmp_path, monkeypatch, enabled):
    monkeypatch.chdir(tmp_path)
    block = {} if enabled is None else {"bf16": {"enabled": enabled}}
    (tmp_path / "mine.json").write_text(json.dumps({"zero_optimization": {"stage": 1}, **block}))
    answers = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "mine.json"}}
    found = engine_settings(launched(answers | {"mixed_precision": "bf16"}))
    assert (found.source, found.stage, found.precision) == ("mine.json and accelerate's configuration", 1, "bf16")


@pytest.mark.parametrize(
    ("answers", "document", "keys", "words"),
    [
        (
            ZERO,
            {"stage": 3},
            {},
            "mine.json: zero_optimization: stage is 3 here, but 2 in accelerate's configuration; keep",
        ),
        (
            ZERO,
            {"stage": 2, "offload_optimizer": {"device": "cpu"}},
            {},
            "offload_optimizer: device is cpu here, but none",
        ),
        (
            zero(offload_param_device="cpu"),
            {"offload_param": {"device": "none"}},
            {},
            "device is none here, but cpu in",
        ),
        (ZERO, {"stage": 2}, {"use_offload": True}, "device is cpu here, but none in accelerate's configuration"),
        (ZERO | {"mixed_precision": "bf16"}, {"stage": 2}, {"use_fp16": True}, "fp16: enabled is True here, but False"),
        (zero(zero_stage="two"), {}, {}, "zero_optimization.stage is 'two'"),
        (zero(offload_optimizer_device="nvme"), {}, {}, "offload_optimizer to nvme is not supported"),
        (zero(zero_stage=2, offload_param_device="cpu"), {}, {}, "offload_param needs at least ZeRO stage 3, not 2"),
    ],
)
def test_two_deepspeed_configurations_that_differ(launched, tmp_path, monkeypatch, answers, document, keys, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text(json.dumps({"zero_optimization": document}))
    made = launched(answers, deepspeed_config="mine.json", **keys)
    with pytest.raises(UserError, match=words):
        engine_settings(made)


def test_two_files_that_differ_and_two_that_do_not(launched, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "gradient_clipping": 3.0}))
    (tmp_path / "theirs.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    answers = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "theirs.json"}}
    (tmp_path / "ds_configs").mkdir()  # accelerate reads its file in the working directory
    (tmp_path / "ds_configs/theirs.json").write_text("{}")
    made = launched(answers, deepspeed_config="ours.json")
    assert engine_settings(made).document["gradient_clipping"] == 3.0
    (tmp_path / "theirs.json").write_text(
        json.dumps({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})
    )
    words = r"deepspeed_config: offload_optimizer is False in ours.json, but True in theirs.json of accelerate's"
    with pytest.raises(UserError, match=words):
        engine_settings(made)
    answers["deepspeed_config"]["deepspeed_config_file"] = "gone.json"
    made = launched(answers)
    with pytest.raises(UserError, match=r"deepspeed_config_file: 'gone\.json' not found"):
        engine_settings(made)


# -- what is refused


@pytest.mark.parametrize(
    ("answers", "options", "keys", "words"),
    [
        (
            fsdp(fsdp_version=1, fsdp_reshard_after_forward="FULL_SHARD"),
            (),
            {},
            "fsdp_version: only FSDP2 is supported",
        ),
        (
            {"distributed_type": "MULTI_GPU"},
            ("--use_fsdp",),
            {},
            "fsdp_version: only FSDP2",
        ),  # the launcher's default is 1
        (FSDP | {"mixed_precision": "fp16"}, (), {}, "fp16 is not supported with FSDP2; use precision: bf16"),
        (FSDP, (), {"precision": "fp16"}, "fp16 is not supported with FSDP2"),
        (fsdp(fsdp_ignored_modules="lm_head"), (), {}, "fsdp_ignored_modules: all modules"),
        (fsdp(fsdp_auto_wrap_policy="SIZE_BASED_WRAP"), (), {}, "fsdp_auto_wrap_policy: not by size"),
        (
            fsdp(fsdp_auto_wrap_policy="LAYERS"),
            (),
            {},
            "fsdp_auto_wrap_policy: not by size; use TRANSFORMER_BASED_WRAP",
        ),
        (fsdp(fsdp_min_num_params=1000), (), {}, "fsdp_min_num_params: wrap by class"),
        (fsdp(fsdp_sharding_strategy="HYBRID_SHARD"), (), {}, "HSDP"),
        (
            fsdp(fsdp_reshard_after_forward="SHARD_GRAD_OP"),
            (),
            {},
            "FSDP_RESHARD_AFTER_FORWARD: 'shard_grad_op' must be",
        ),
        (
            fsdp(fsdp_activation_checkpointing=True, fsdp_activation_checkpointing_offload=True),
            (),
            {},
            "fsdp_activation_checkpointing_offload",
        ),
        *(
            (
                FSDP | {"parallelism_config": {f"parallelism_config_{name}_size": 2}},
                (),
                {},
                "parallelism_config: no tp_size, cp_size, sp_size or HSDP",
            )
            for name in ("tp", "cp", "sp", "dp_replicate", "dp_shard")
        ),
        ({"distributed_type": "MEGATRON_LM"}, (), {}, "Megatron-LM is not supported; use FSDP2 or DeepSpeed"),
        ({"distributed_type": "MULTI_GPU", "dynamo_config": {"dynamo_backend": "INDUCTOR"}}, (), {}, "dynamo_backend"),
        (zero(deepspeed_moe_layer_cls_names="MixtralSparseMoeBlock"), (), {}, "deepspeed_moe_layer_cls_names"),
        (
            {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16"},
            (),
            {"precision": "fp32"},
            "accelerate's configuration: mixed_precision: bf16, but the YAML asks for precision fp32; keep one of them",
        ),
        (ZERO | {"mixed_precision": "fp16"}, (), {"precision": "bf16"}, "mixed_precision: fp16, but the YAML asks for"),
        ({"distributed_type": "NO", "use_cpu": True, "num_processes": 1}, (), {"device": "cuda"}, "use_cpu: true"),
        (ZERO, (), {"use_lora": True}, "use_lora: is not supported with use_deepspeed; use DDP or, for LoRA, FSDP2"),
        (ZERO, (), {"precision": "fp16"}, "precision: is not supported with use_deepspeed"),
        (ZERO, (), {"use_fsdp": True}, "use_fsdp: true: FSDP2 and DeepSpeed are both asked for; keep one of them"),
        (FSDP, (), {"use_deepspeed": True}, "accelerate launch: FSDP2 and DeepSpeed are both asked for"),
        (FSDP, (), {"model_class": {"id": "mine"}}, "model_class: is not supported with use_fsdp"),
        (FSDP, ("--cpu",), {}, "accelerate launch has started a single process"),
        ({"distributed_type": "MULTI_CPU", "use_cpu": True}, (), {}, "started a single process"),
    ],
)
def test_what_a_run_cannot_do_is_refused_by_name(launched, answers, options, keys, words):
    with pytest.raises(UserError, match=words) as caught:
        launched(answers, *options, **keys)
    assert "\n" not in str(caught.value)
    assert "Value error" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, r"TPUs \(XLA\) are not supported") for name in ("XLA_USE_BF16", "XLA_DOWNCAST_BF16")),
        ("ACCELERATE_IN_TPU_POD", r"TPUs \(XLA\) are not supported"),
        ("ACCELERATE_USE_SAGEMAKER", "SageMaker's launcher is not supported"),
    ],
)
def test_machines_of_others_are_refused(launched, monkeypatch, name, words):
    monkeypatch.setenv(name, "1")
    with pytest.raises(UserError, match=words):
        settle(config())


def test_fp8_is_refused(launched, monkeypatch):
    """accelerate refuses it first where it has no library for it."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    with pytest.raises(UserError, match="mixed_precision: fp8 is not supported; use bf16"):
        settle(config())


@pytest.mark.parametrize("key", ["ref_ds_config", "intent_ds_config"])
def test_frozen_models_are_not_partitioned_beside_fsdp2(launched, tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whole.json").write_text('{"zero_optimization": {"stage": 0}}')
    (tmp_path / "parts.json").write_text('{"zero_optimization": {"stage": 3}}')
    assert frozen_settings(launched(FSDP, **{key: "whole.json"}), key).stage == 0
    for name in ("parts.json", "default"):
        with pytest.raises(UserError, match=f"{key}: .*not supported with FSDP2; use stage 0 without offload"):
            frozen_settings(launched(FSDP, **{key: name}), key)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"SLURM_STEP_NUM_TASKS": "8"}, "srun has started 8 tasks, but each would train alone"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "mpirun has started 4 tasks"),
        ({"PMI_SIZE": "1"}, None),
        ({"MASTER_ADDR": "10.0.0.1"}, None),  # of another program
    ],
)
def test_one_process_in_place_of_several(launched, monkeypatch, changes, words):
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    if words:
        with pytest.raises(UserError, match=words):
            settle(config())
    monkeypatch.setenv("WORLD_SIZE", "1" if words else "2")
    settle(config())


def test_a_refusal_ends_the_command_with_code_2_and_one_sentence(tmp_path, monkeypatch):
    """Before torch is loaded, let alone an Accelerator made."""
    forget_launchers(monkeypatch)
    monkeypatch.setenv("ACCELERATE_USE_MEGATRON_LM", "true")
    program = (
        "import sys\nfrom rlhf_dialog.config.schema import Config\nfrom rlhf_dialog.distributed.strategy import settle\n"
        f"try:\n    settle(Config.model_validate({CLASSES!r}))\n"
        "except Exception as error:\n    print(error.exit_code, error)\n"
        "print(sorted({'torch', 'accelerate', 'transformers'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ, check=True)
    refusal, loaded = ran.stdout.splitlines()
    assert refusal == "2 accelerate's configuration: Megatron-LM is not supported; use FSDP2 or DeepSpeed"
    assert loaded == "[]"


# -- what is said


@pytest.mark.parametrize(
    ("answers", "options", "texts"),
    [
        (fsdp(fsdp_state_dict_type="FULL_STATE_DICT"), (), []),
        (FSDP, (), ["fsdp_state_dict_type: checkpoints hold whole weights"]),
        *(
            (fsdp(**answers, fsdp_state_dict_type="FULL_STATE_DICT"), (), [text])
            for answers, text in (
                ({"fsdp_sharding_strategy": "SHARD_GRAD_OP"}, "fsdp_sharding_strategy: fsdp_reshard_after_forward"),
                ({"fsdp_auto_wrap_policy": "NO_WRAP"}, "fsdp_auto_wrap_policy: the layers of the model are wrapped"),
                ({"fsdp_backward_prefetch": "BACKWARD_PRE"}, "fsdp_backward_prefetch: FSDP2 plans its own"),
                ({"fsdp_forward_prefetch": True}, "fsdp_forward_prefetch: FSDP2 plans its own"),
                ({"fsdp_use_orig_params": False}, "fsdp_use_orig_params: FSDP2 always"),
                ({"fsdp_sync_module_states": False}, "fsdp_sync_module_states: all processes begin"),
                ({"fsdp_cpu_ram_efficient_loading": True}, "fsdp_cpu_ram_efficient_loading: every process reads"),
            )
        ),
        (ZERO, (), []),
        (zero(gradient_accumulation_steps=4, gradient_clipping=1.0), (), ["gradient_accumulation", "max_grad_norm"]),
        (zero(zero3_init_flag=True, zero3_save_16bit_model=True), (), ["zero3_init_flag", "saved weights are float32"]),
        ({"distributed_type": "MULTI_GPU", "debug": True}, (), ["debug: the exchanges"]),
        ({"distributed_type": "MULTI_GPU"}, ("--enable_cpu_affinity",), ["enable_cpu_affinity: only"]),
    ],
)
def test_what_has_no_effect_is_told_once(launched, caplog, answers, options, texts):
    settle(launched(answers, *options))
    notices = [record.message for record in caplog.records if "without effect" in record.message]
    assert len(notices) == len(texts)
    assert all(text in notice for text, notice in zip(texts, notices, strict=True))


def test_answers_about_a_strategy_that_nobody_asked_for_do_not_count(launched, monkeypatch):
    for name, value in {"FSDP_VERSION": "1", "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES": "A"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", "gone.json")
    made = config(use_deepspeed=True)
    settle(made)
    assert engine_settings(made).source == "our default (ZeRO stage 2)"
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")  # what `accelerate config` writes for no answer
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert engine_settings(made).source == "our default (ZeRO stage 2)"
