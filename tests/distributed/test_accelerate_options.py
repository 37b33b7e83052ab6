"""Every option, key and variable of accelerate's launcher: a run honours it, says that it has no effect, refuses it, or has
nothing to do with it. A new one of accelerate fails here, and is put into a table."""

import ast
import dataclasses
import inspect
import random
import re

import pytest
from accelerate.commands.config import cluster
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import launch

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.deepspeed_config import engine_settings
from rlhf_dialog.distributed.strategy import NOTICES, REFUSED, fsdp_settings, settle
from rlhf_dialog.errors import UserError
from tests.parts.launches import forget_launchers, launched_variables

CLASSES = {"env": {"args": {"data_path": "d"}}, "reward_class": {"id": "LengthMatch"}, "model_path": "m"}

USE_FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
USE_ZERO = {"ACCELERATE_USE_DEEPSPEED": "true"}
HONOURED = {  # variable: a value, what it needs beside it, and what it decides
    "ACCELERATE_MIXED_PRECISION": ("bf16", {}, lambda config: config.precision == "bf16"),
    "ACCELERATE_USE_CPU": ("True", {}, lambda config: config.device == "cpu"),
    "ACCELERATE_USE_FSDP": ("true", USE_FSDP, lambda config: config.use_fsdp),
    "ACCELERATE_USE_DEEPSPEED": ("true", {}, lambda config: config.use_deepspeed),
    "FSDP_VERSION": ("2", USE_FSDP, lambda config: fsdp_settings(config) is not None),
    "FSDP_TRANSFORMER_CLS_TO_WRAP": ("A,B", USE_FSDP, lambda config: fsdp_settings(config).wrap == ("A", "B")),
    "FSDP_AUTO_WRAP_POLICY": ("TRANSFORMER_BASED_WRAP", USE_FSDP, lambda config: fsdp_settings(config).wrap == ()),
    "FSDP_RESHARD_AFTER_FORWARD": ("false", USE_FSDP, lambda config: not fsdp_settings(config).reshard_after_forward),
    "FSDP_OFFLOAD_PARAMS": ("true", USE_FSDP, lambda config: fsdp_settings(config).cpu_offload),
    "FSDP_ACTIVATION_CHECKPOINTING": ("true", USE_FSDP, lambda config: config.activation_checkpointing),
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": ("3", USE_ZERO, lambda config: engine_settings(config).stage == 3),
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": (
        "cpu",
        USE_ZERO,
        lambda config: engine_settings(config).offload_optimizer,
    ),
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": (
        "cpu",
        USE_ZERO | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"},
        lambda config: engine_settings(config).offload_param,
    ),
    "ACCELERATE_DEEPSPEED_CONFIG_FILE": ("zero1.json", USE_ZERO, lambda config: engine_settings(config).stage == 1),
}
OWN = {  # the launcher's: which processes it starts, where, and how it speaks of them
    *("help", "config_file", "quiet", "compute_environment", "training_script", "training_script_args", "module"),
    *("no_python", "multi_gpu", "num_processes", "num_machines", "machine_rank", "main_process_ip", "gpu_ids"),
    *("main_process_port", "same_network", "tee", "log_dir", "role", "rdzv_backend", "rdzv_conf", "max_restarts"),
    *(
        "monitor_interval",
        "num_cpu_threads_per_process",
        "mpirun_hostfile",
        "distributed_type",
        "vm",
        "env",
        "commands",
    ),
    *("command_file", "aws_access_key_id", "aws_secret_access_key", "main_training_function", "mpirun_config"),
    *("deepspeed_hostfile", "deepspeed_exclusion_filter", "deepspeed_inclusion_filter", "deepspeed_multinode_launcher"),
    *("ACCELERATE_CONFIG_DS_FIELDS", "OMP_NUM_THREADS", "PYTHONPATH", "KMP_AFFINITY", "KMP_BLOCKTIME"),
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "FORK_LAUNCHED"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_PROFILE"),
    *("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES", "MLU_VISIBLE_DEVICES"),
    *("MUSA_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES", "SDAA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
}
VARIABLES = {  # the variable of an option or key whose name does not say it
    "cpu": "ACCELERATE_USE_CPU",
    "debug": "ACCELERATE_DEBUG_MODE",
    "enable_cpu_affinity": "ACCELERATE_CPU_AFFINITY",
    "fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP",
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "downcast_bf16": "XLA_DOWNCAST_BF16",
}
FAMILIES = {  # what is asked for only together with a variable that is refused, or is decided by the keys of a block
    r"megatron_lm_.*": "ACCELERATE_USE_MEGATRON_LM",
    r"parallelism_config(_.*)?": "ACCELERATE_USE_PARALLELISM_CONFIG",
    r"(accelerate_)?fp8_.*": "ACCELERATE_MIXED_PRECISION",
    r"(accelerate_)?dynamo_.*": "ACCELERATE_DYNAMO_BACKEND",
    r"tpu(_.*)?": "XLA_USE_BF16",
    r"accelerate_sagemaker_.*": "ACCELERATE_USE_SAGEMAKER",
    r"offload_\w+_nvme_path": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    r"deepspeed_config": "ACCELERATE_USE_DEEPSPEED",
    r"fsdp_config": "ACCELERATE_USE_FSDP",
}
TABLES = {*HONOURED, *REFUSED, *NOTICES, *OWN}


def is_in_a_table(name: str) -> bool:
    family = next((variable for pattern, variable in FAMILIES.items() if re.fullmatch(pattern, name, re.I)), None)
    upper = name.upper()
    places = (name, VARIABLES.get(name), family, upper, f"ACCELERATE_{upper}", f"ACCELERATE_DEEPSPEED_{upper}")
    places += (f"ACCELERATE_DEEPSPEED_{upper.removesuffix('_FLAG')}",)
    return bool(TABLES & set(places))


def texts(tree: ast.AST) -> list[str]:
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def written_keys() -> set[str]:
    """The keys of the file that `accelerate config` writes: ClusterConfig's, and what is put into its blocks."""
    keys = {field.name for field in dataclasses.fields(ClusterConfig)}
    for node in ast.walk(ast.parse(inspect.getsource(cluster))):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id.endswith("_config"):
            (key,) = texts(node.slice)
            block = node.value.id.removesuffix("_config")
            is_short = isinstance(node.slice, ast.BinOp) or block == "fp8"
            prefix = {"parallelism": "parallelism_config"}.get(block, block)
            keys.add(f"{prefix}_{key}" if is_short and not key.startswith(prefix) else key)
    return keys


def exported_variables() -> set[str]:
    """The names of variables that the launcher's functions set; a name that begins with `prefix` has that of its function."""
    names = set()
    for function in (
        node for node in ast.walk(ast.parse(inspect.getsource(launch))) if isinstance(node, ast.FunctionDef)
    ):
        prefixes = [
            node.value.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "prefix"
            and isinstance(node.value, ast.Constant)
        ]
        for node in ast.walk(function):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                if isinstance(target, ast.Subscript) and ast.unparse(target.value) in ("current_env", "os.environ"):
                    found = "".join(text for text in texts(target.slice) if text.isupper())
                    begin = prefixes[0] if "prefix" in ast.unparse(target.slice) else ""
                    names.add(f"{begin}{found}" or ast.unparse(target.slice))
            if isinstance(node, ast.Dict):
                names |= {key.value for key in node.keys if isinstance(key, ast.Constant) and str(key.value).isupper()}
    return names - {"ACCELERATE_"}  # of fp8's, which have the names of its options


WALKED = {
    "option": {action.dest for action in launch_command_parser()._actions},
    "key": written_keys(),
    "variable": exported_variables(),
}


@pytest.mark.parametrize("kind", WALKED)
def test_a_run_knows_what_to_do_with_everything_that_accelerate_can_be_asked_for(kind):
    assert [f"{kind} {name}" for name in sorted(WALKED[kind]) if not is_in_a_table(name)] == []


def test_the_walk_sees_what_is_there():
    assert {"fsdp_version", "mixed_precision", "zero_stage", "megatron_lm_tp_degree"} <= WALKED["option"]
    assert {"fsdp_version", "mixed_precision", "zero_stage", "megatron_lm_tp_degree", "tpu_zone"} <= WALKED["key"]
    assert {"parallelism_config_cp_comm_strategy", "dynamo_backend", "fp8_backend"} <= WALKED["key"]
    assert {"MEGATRON_LM_TP_DEGREE", "PARALLELISM_CONFIG_TP_SIZE", "FSDP_VERSION", "RANK"} <= WALKED["variable"]
    assert {"XLA_USE_BF16", "ACCELERATE_USE_SAGEMAKER", "ACCELERATE_FP8_OVERRIDE_FPROP"} <= WALKED["variable"]
    assert min(map(len, WALKED.values())) > 80
    assert not any(map(is_in_a_table, ("fsdp_new", "FSDP_NEW", "ACCELERATE_NEW", "new", "zero_new", "deepspeed_new")))


def test_no_table_names_what_accelerate_does_not_have():
    there = {*WALKED["option"], *WALKED["key"], *WALKED["variable"]}
    assert OWN - there == set()
    assert {*HONOURED, *REFUSED, *NOTICES} - there == {"ACCELERATE_IN_TPU_POD"}  # which another file sets


@pytest.mark.parametrize("variable", HONOURED)
def test_a_variable_that_is_honoured_decides(monkeypatch, variable):
    forget_launchers(monkeypatch)
    value, beside, decides = HONOURED[variable]
    for name, other in (beside | {variable: value}).items():
        monkeypatch.setenv(name, other)
    config = Config.model_validate(CLASSES)
    settle(config)
    assert decides(config)
    if variable not in ("FSDP_VERSION", "FSDP_AUTO_WRAP_POLICY"):  # of which one value is accepted
        monkeypatch.delenv(variable)
        config = Config.model_validate(CLASSES)
        settle(config)
        assert not decides(config) if variable not in beside else not config.use_fsdp


def answer_at_random(monkeypatch, seed: int) -> dict:
    """What `accelerate config` writes after such answers. Raises an error of accelerate's for answers that it refuses."""
    rng = random.Random(seed)

    def choose(text, options, convert=None, default=None):
        number = rng.randrange(len(options))
        return convert(number) if convert else options[number]

    def fill(text, convert=None, default=None, error_message=None):
        if convert is cluster._convert_yes_no_to_bool:
            return rng.random() < 0.5
        values = {int: rng.choice([1, 2, 3]), float: 1.0}
        return values.get(convert, "zero.json" if "json" in text else "none" if default is None else default)

    monkeypatch.setattr(cluster, "_ask_options", choose)
    monkeypatch.setattr(cluster, "_ask_field", fill)
    monkeypatch.setattr(cluster, "is_deepspeed_available", lambda: True)  # only its questions are asked
    return cluster.get_cluster_input().to_dict() | {"main_process_port": 0}


def test_whatever_accelerate_config_is_answered_a_run_begins_or_says_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 2}}')
    outcomes: set[str] = set()
    for seed in range(80):
        with monkeypatch.context() as patch:
            forget_launchers(patch)
            try:
                variables = launched_variables(tmp_path, answer_at_random(patch, seed))
            except (ValueError, RuntimeError, ImportError, OSError):  # accelerate's, before it starts a program
                continue
            for name, value in variables.items():
                patch.setenv(name, value)
            config = Config.model_validate(CLASSES)
            try:
                settle(config)
                outcomes.add(
                    f"stage {engine_settings(config).stage}" if config.use_deepspeed else f"FSDP2 {config.use_fsdp}"
                )
            except UserError as error:
                outcomes.add(str(error) if "\n" in str(error) else "refused")
    assert {"stage 1", "stage 2", "FSDP2 True", "FSDP2 False", "refused"} <= outcomes
    assert outcomes <= {"refused", "FSDP2 True", "FSDP2 False", *(f"stage {stage}" for stage in range(4))}
